// The stream of what changes on this page. A part is an element with an id; the server sends those that differ.
const RETRY_MS = 2000;
const QUIET_MS = 12000; // the server says something every five seconds
const ANSWER_MS = 10000;
const main = document.getElementById("main");
const live = document.getElementById("live");
const held = new Map(); // parts whose text a reader has selected, by id
let pageIsHeld = false; // the whole page has changed meanwhile

export function follow(made) {
  const address = location.pathname + location.search;
  let source = null;
  let timer = null;
  let newest = new Date();

  function show(state) {
    const said = state !== "live" ? `as of ${newest.toLocaleTimeString()}, ${state}`
      : held.size || pageIsHeld ? "live, but for what you have selected" : "live";
    live.dataset.state = state;
    if (live.textContent !== said) live.textContent = said; // else screen readers say it again
  }

  function heard() {
    newest = new Date();
    show("live");
    clearTimeout(timer);
    timer = setTimeout(lost, QUIET_MS);
  }

  function close(state) {
    source?.close();
    clearTimeout(timer);
    show(state);
  }

  function lost() {
    close("connecting");
    timer = setTimeout(connect, RETRY_MS);
    signInAgain();
  }

  function connect() {
    source?.close();
    clearTimeout(timer);
    held.clear();
    pageIsHeld = false;
    const query = new URLSearchParams({address, shape: main.dataset.shape});
    source = new EventSource(`/ui/live?${query}`);
    source.addEventListener("page", event => {
      if (selectedOf([main]).size) pageIsHeld = true;
      else replaceMain(JSON.parse(event.data), made);
      heard();
    });
    source.addEventListener("parts", event => {
      if (!pageIsHeld) putAll(Object.entries(JSON.parse(event.data)));
      made(main);
      heard();
    });
    source.addEventListener("same", heard);
    source.addEventListener("again", connect);
    source.addEventListener("sign-in", () => location.reload());
    source.onerror = lost;
  }

  function release() {
    if (!getSelection()?.isCollapsed || !(held.size || pageIsHeld)) return;
    if (pageIsHeld) {
      connect();
      return;
    }
    putAll([...held]);
    made(main);
    show("live");
  }

  // A browser has six connections to a server for all its tabs: one that nobody sees needs none.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close("paused");
    else connect();
  });
  addEventListener("offline", lost);
  addEventListener("online", connect);
  document.addEventListener("selectionchange", release);
  addEventListener("pagehide", () => { source?.close(); clearTimeout(timer); });
  addEventListener("pageshow", event => { if (event.persisted) connect(); });
  if (document.hidden) close("paused");
  else connect();
}

// A stream does not say why it was refused.
async function signInAgain() {
  try {
    const reply = await fetch("/", {headers: {accept: "application/json"}, signal: AbortSignal.timeout(ANSWER_MS)});
    if (reply.status === 401) location.reload();
  } catch { /* the server is away */ }
}

function replaceMain(page, made) {
  const focus = isInside(main) ? key(document.activeElement) : null;
  const found = document.getElementById("find")?.value;
  const graph = document.getElementById("graph");
  const scrolled = graph && [graph.scrollLeft, graph.scrollTop];
  main.innerHTML = page.main;
  main.dataset.shape = page.shape;
  document.title = `${page.title} · jobpipe`;
  const input = document.getElementById("find");
  if (input && found) input.value = found;
  made(main);
  if (scrolled) document.getElementById("graph")?.scrollTo(...scrolled);
  if (focus) focusOn(main, focus);
}

// What is asked of the page is asked before anything is changed: an answer in between would lay it out once for each.
function putAll(parts) {
  const found = parts.map(([id, html]) => [document.getElementById(id), id, html]).filter(([old]) => old);
  // Buttons must be those of now; all else waits for a person who selects text, to copy it.
  const busy = selectedOf(found.map(([old]) => old).filter(old => !old.querySelector("button")));
  for (const [old, id, html] of found) {
    if (busy.has(old)) held.set(id, html);
    else put(old, id, html);
  }
}

function put(old, id, html) {
  held.delete(id);
  const box = old.parentElement;
  const atEnd = box.id === "log-box" && box.scrollTop + box.clientHeight >= box.scrollHeight - 8;
  const focus = isInside(old) ? key(document.activeElement) : null;
  old.outerHTML = html;
  if (focus) focusOn(document.getElementById(id), focus);
  if (atEnd) box.scrollTop = box.scrollHeight;
}

function selectedOf(elements) {
  const selection = getSelection();
  if (!selection || selection.isCollapsed) return new Set();
  return new Set(elements.filter(element => selection.containsNode(element, true)));
}

function isInside(element) {
  return element.contains(document.activeElement) && document.activeElement !== document.body;
}

// By which the thing that has the focus is found again: never another one, which Enter would press.
function key(element) {
  return element.id || element.dataset.path || element.getAttribute("href") || "";
}

function focusOn(root, wanted) {
  const all = [root, ...root.querySelectorAll("a[href], button, input, select, [tabindex]")];
  const found = wanted && all.find(element => key(element) === wanted);
  if (!found && !root.hasAttribute("tabindex")) root.tabIndex = -1;
  (found || root).focus({preventScroll: true});
}
