// The stream of what changes on this page. A part is an element with an id; the server sends those that differ.
const RETRY_MS = 2000;
const QUIET_MS = 12000; // the server says something every five seconds
const main = document.getElementById("main");
const live = document.getElementById("live");
const held = new Map(); // parts that a reader is busy with, by id

export function follow(made) {
  const address = location.pathname + location.search;
  let source = null;
  let timer = null;
  let newest = new Date();

  function show(state) {
    live.dataset.state = state;
    live.textContent = state === "live" ? "live" : `as of ${newest.toLocaleTimeString()}, connecting`;
  }

  function heard() {
    newest = new Date();
    show("live");
    clearTimeout(timer);
    timer = setTimeout(lost, QUIET_MS);
  }

  function lost() {
    source?.close();
    clearTimeout(timer);
    show("stopped");
    timer = setTimeout(connect, RETRY_MS);
  }

  function connect() {
    const query = new URLSearchParams({address, shape: main.dataset.shape});
    source = new EventSource(`/ui/live?${query}`);
    source.addEventListener("page", event => {
      const page = JSON.parse(event.data);
      held.clear();
      replaceMain(page);
      made(main);
      heard();
    });
    source.addEventListener("parts", event => {
      putAll(Object.entries(JSON.parse(event.data)));
      made(main);
      heard();
    });
    source.addEventListener("same", heard);
    source.addEventListener("sign-in", () => location.reload());
    source.onerror = lost;
  }

  addEventListener("offline", lost);
  addEventListener("online", () => { clearTimeout(timer); source?.close(); connect(); });
  document.addEventListener("selectionchange", () => release(made));
  addEventListener("pagehide", () => { source?.close(); clearTimeout(timer); });
  addEventListener("pageshow", event => { if (event.persisted) connect(); });
  connect();
}

function replaceMain(page) {
  const focused = document.activeElement?.id;
  const found = document.getElementById("find")?.value;
  main.innerHTML = page.main;
  main.dataset.shape = page.shape;
  const input = document.getElementById("find");
  if (input && found) input.value = found;
  if (focused) document.getElementById(focused)?.focus({preventScroll: true});
}

// What is asked of the page is asked before anything is changed: an answer in between would lay it out once for each.
function putAll(parts) {
  const found = parts.map(([id, html]) => [document.getElementById(id), id, html]).filter(([old]) => old);
  const busy = selected(found.map(([old]) => old));
  for (const [old, id, html] of found) {
    if (busy.has(old)) held.set(id, html);
    else put(old, id, html);
  }
}

function put(old, id, html) {
  held.delete(id);
  const box = old.parentElement;
  const atEnd = box.id === "log-box" && box.scrollTop + box.clientHeight >= box.scrollHeight - 8;
  const focus = old.contains(document.activeElement) ? place(old, document.activeElement) : null;
  old.outerHTML = html;
  const now = document.getElementById(id);
  if (focus) focusAt(now, focus);
  if (atEnd) box.scrollTop = box.scrollHeight;
}

// A person who selects text, to copy it, must not lose it.
function selected(elements) {
  const selection = getSelection();
  if (!selection || selection.isCollapsed) return new Set();
  return new Set(elements.filter(element => selection.containsNode(element, true)));
}

function release(made) {
  if (held.size === 0) return;
  putAll([...held]);
  made(main);
}

// Which of the things that can have the focus has it: the number among all of the part; -1: the part itself.
const FOCUSABLE = "a[href], button, input, [tabindex]";

function place(part, element) {
  return {at: [...part.querySelectorAll(FOCUSABLE)].indexOf(element)};
}

function focusAt(part, {at}) {
  (at < 0 ? part : part.querySelectorAll(FOCUSABLE)[at])?.focus({preventScroll: true});
}
