// What a person may do: asked once, in the server's words, then sent as a request to REST.
const dialog = document.getElementById("ask");
const [title, question, error, yes] =
  ["ask-title", "ask-question", "ask-error", "ask-yes"].map(id => document.getElementById(id));
const told = document.getElementById("told");
let wanted = null;

export function ask(button) {
  const {method, path, body} = button.dataset;
  wanted = {method, path, body, label: button.textContent};
  title.textContent = wanted.label;
  question.textContent = button.dataset.question;
  error.textContent = "";
  yes.textContent = wanted.label;
  yes.disabled = false;
  dialog.showModal();
}

yes?.addEventListener("click", async event => {
  event.preventDefault();
  yes.disabled = true;
  const said = await send(wanted);
  yes.disabled = false;
  error.textContent = said;
  if (said === "") {
    dialog.close();
    tell(`${wanted.label}: done`);
  }
});

async function send({method, path, body}) {
  const headers = body === undefined ? {} : {"Content-Type": "application/json"};
  try {
    const reply = await fetch(path, {method, body, headers});
    if (reply.ok) return "";
    const problem = await reply.json();
    return problem.detail ?? problem.title ?? `the server answers ${reply.status}`;
  } catch (failure) {
    return `the server does not answer (${failure.message}); it is not known whether it was done`;
  }
}

function tell(text) {
  told.textContent = text;
  clearTimeout(tell.timer);
  tell.timer = setTimeout(() => { told.textContent = ""; }, 6000);
}
