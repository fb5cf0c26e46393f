// Replaces what moves in a page by what the server sends. Without it the page is whole, and still.
"use strict";

const address = document.body.dataset.live;
const sign = document.getElementById("live");
let source = null;

function say(text, isWell) {
  sign.hidden = false;
  sign.textContent = text;
  sign.classList.toggle("off", !isWell);
}

function replace(parts) {
  const focused = document.activeElement && document.activeElement.getAttribute("href");
  for (const [id, html] of Object.entries(parts)) {
    const place = document.getElementById(id);
    if (place === null) continue;
    const strip = place.querySelector(".strip");
    const from = strip ? strip.scrollLeft : 0;
    const atEnd = strip ? strip.scrollLeft + strip.clientWidth >= strip.scrollWidth - 4 : false;
    place.innerHTML = html;
    const after = place.querySelector(".strip");
    if (after) after.scrollLeft = atEnd ? after.scrollWidth : from;
    if (focused && document.activeElement === document.body) {
      const again = place.querySelector(`a[href="${CSS.escape(focused)}"]`);
      if (again) again.focus();
    }
  }
}

function open() {
  if (source !== null || document.hidden) return;
  source = new EventSource(address);
  source.onopen = () => say("live", true);
  source.onmessage = (event) => replace(JSON.parse(event.data));
  source.onerror = () => say("not live: fencepost ui does not answer", false);
}

function close() {
  if (source === null) return;
  source.close();
  source = null;
}

if (address) {
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  open();
}
for (const strip of document.querySelectorAll(".strip")) strip.scrollLeft = strip.scrollWidth;
