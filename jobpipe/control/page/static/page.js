// Keeps the page live, and makes its controls work. The HTML is made on the server; this only puts its parts in place.
import {follow} from "./live.js";
import {ask} from "./actions.js";
import {localTimes} from "./local_times.js";
import {find, fit} from "./graph.js";

function made(root) {
  localTimes(root);
  find();
  fit();
}

made(document);
const log = document.getElementById("log-box");
if (log) log.scrollTop = log.scrollHeight;
if (document.getElementById("main").dataset.live !== "no") follow(made);

addEventListener("resize", fit);
document.addEventListener("click", event => {
  const button = event.target.closest("button[data-path]");
  if (button) ask(button);
});
document.addEventListener("input", event => {
  if (event.target.id === "find") find();
});
const signOut = document.getElementById("sign-out");
if (signOut) {
  signOut.addEventListener("click", async () => {
    await fetch("/ui/sign-in", {method: "DELETE"});
    location.assign("/");
  });
  signOut.disabled = false;  // it does nothing before
}
