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
      document.querySelector("main").replaceWith(page.querySelector("main"));
    }
  } finally {
    isDue = false;
  }
}
events.addEventListener("changed", refresh);
