// Replaces the content every 5 seconds. Without this script the page shows the status of the time of the request.
"use strict";
const freshness = document.getElementById("freshness");
const poll = async () => {
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    page.getElementById("freshness").replaceWith(freshness);
    document.querySelector("main").replaceWith(page.querySelector("main"));
    freshness.textContent = "Updated every 5 seconds.";
  } catch {
    freshness.textContent = "The server does not respond; these figures are out of date.";
  }
};
setInterval(() => document.hidden || poll(), 5000);
poll();
