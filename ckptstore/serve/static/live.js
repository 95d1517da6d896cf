// The page follows the runs: when one changes, the content is fetched anew and put in its place.
"use strict";
const events = new EventSource("/api/v1/events");
let isDue = false;
async function refresh() {
  // A plan that somebody is about to agree to stays as it is, and so does what somebody types.
  if (isDue || document.querySelector("main[data-still], main :focus")) { return; }
  isDue = true;
  try {
    const answer = await fetch(location.href);
    if (answer.ok) {
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const open = [...document.querySelectorAll("main details")].map(each => each.open);
      document.querySelector("main").replaceWith(page.querySelector("main"));
      document.querySelectorAll("main details").forEach((each, at) => { each.open = open[at] || each.open; });
      offerCopies();
    }
  } finally {
    isDue = false;
  }
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
events.addEventListener("changed", refresh);
offerCopies();
