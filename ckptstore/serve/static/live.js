// The page follows the runs: when one changes, the content is fetched anew and put in its place.
"use strict";
let hasChanged = false, isFetching = false;
// A plan that somebody is about to agree to stays as it is, and so does what somebody types. A click on a table is no use.
function isInUse() {
  return document.querySelector("main[data-still], main :focus-visible") !== null;
}
async function refresh() {
  if (isFetching) { return; }
  let isShown = isFetching = true;
  try {
    while (isShown && hasChanged && !isInUse()) {
      hasChanged = isShown = false;
      const signal = AbortSignal.timeout?.(60000);  // a machine that is gone never answers
      const answer = await fetch(location.href, { headers: { accept: "text/html" }, signal });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
      isShown = answer.ok && page !== null && !isInUse();
      if (isShown) { show(page); }
    }
  } finally {
    if ((hasChanged ||= !isShown) && !isInUse()) { outdate(); }
    isFetching = false;
  }
}
function show(main) {
  const parts = () => [...document.querySelectorAll("main details, main .wide")];
  const before = parts().map(({ open, scrollLeft }) => ({ open, scrollLeft }));
  document.querySelector("main").replaceWith(main);
  parts().forEach((each, at) => { each.open ||= before[at]?.open; each.scrollLeft = before[at]?.scrollLeft; });
  offerCopies();
}
// A button beside each command, where the browser lets a page write to the clipboard.
function offerCopies() {
  if (!navigator.clipboard) { return; }
  for (const code of document.querySelectorAll("code[data-copy]")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy " + code.textContent);
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
      button.blur();
    });
    code.after(button);
  }
}
// Until the page is fetched again it says that it is old. Perhaps something has changed by then.
const outdate = () => { hasChanged = true; document.querySelector("main").dataset.old = ""; };
const change = () => { hasChanged = true; refresh(); };
function listen() {
  const events = new EventSource("/api/v1/events");
  events.addEventListener("changed", change);
  events.addEventListener("unavailable", outdate);
  events.addEventListener("error", () => {
    outdate();
    // After an answer that is an error, as that of a proxy, the browser does not connect again.
    if (events.readyState === EventSource.CLOSED) { change(); setTimeout(listen, 5000); }
  });
  events.addEventListener("open", refresh);
}
listen();
setInterval(change, 60000);  // how long ago something was changes without an event
document.addEventListener("focusout", () => { setTimeout(refresh); });  // the focus may move within the page
offerCopies();
