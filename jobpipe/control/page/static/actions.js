// What a person may do: asked once, in the server's words, then sent as a request to REST.
const ANSWER_MS = 60000;
const dialog = document.getElementById("ask");
const [title, question, error, yes] =
  ["ask-title", "ask-question", "ask-error", "ask-yes"].map(id => document.getElementById(id));
const told = document.getElementById("told");
let wanted = null; // what the open dialog asks

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

dialog?.addEventListener("close", () => { wanted = null; });

yes?.addEventListener("click", async event => {
  event.preventDefault();
  const sent = wanted;
  yes.disabled = true;
  const said = await send(sent);
  if (wanted !== sent) { // its dialog was closed before the answer came
    tell(`${sent.label}: ${said || "done"}`);
    return;
  }
  yes.disabled = false;
  error.textContent = said;
  if (said === "") {
    dialog.close();
    tell(`${sent.label}: done`);
  }
});

async function send({method, path, body}) {
  const headers = body === undefined ? {} : {"Content-Type": "application/json"};
  let reply;
  try {
    reply = await fetch(path, {method, body, headers, signal: AbortSignal.timeout(ANSWER_MS)});
  } catch (failure) {
    return `the server does not answer (${failure.message}); it is not known whether it was done`;
  }
  if (reply.ok) return "";
  const problem = await reply.json().catch(() => ({}));
  return problem.detail ?? problem.title ?? `the server answers ${reply.status}; it is not known whether it was done`;
}

function tell(text) {
  told.textContent = text;
  clearTimeout(tell.timer);
  tell.timer = setTimeout(() => { told.textContent = ""; }, 6000);
}
