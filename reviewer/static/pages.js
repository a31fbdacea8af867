// What every page shares: times that stay true, and word of a connection that is lost. Without it pages still work.
"use strict";

(() => {
  const SECONDS = 1000, AGAIN_SECONDS = 3;
  const waiting = new WeakMap();

  function span(seconds) {
    const minutes = Math.floor(seconds / 60), hours = Math.floor(seconds / 3600);
    if (minutes < 1) return `${Math.floor(seconds)} s`;
    if (hours < 1) return `${minutes} min`;
    return hours < 24 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
  }

  function tell(time) {
    const at = Date.parse(time.dateTime), now = Date.now();
    const left = (at - now) / SECONDS;
    let words = `${span(Math.max(-left, 0))} ago`;
    if (time.dataset.told === "until") words = left > 0 ? `in ${span(left)}` : "over";
    if (time.textContent !== words) time.textContent = words;
  }

  function tellAll() {
    document.querySelectorAll("time[data-told=since], time[data-told=until]").forEach(tell);
  }

  function notice(words, link) {
    const place = document.getElementById("notice");
    place.textContent = words;
    if (!link) return;
    const anchor = document.createElement("a");
    [anchor.href, anchor.target, anchor.textContent] = [link.href, "_blank", link.words];
    place.append(" ", anchor);
  }

  document.addEventListener("DOMContentLoaded", tellAll);
  setInterval(tellAll, SECONDS);

  // What could not be read is asked for again: the next change may be far off, and a stream of changes comes back by
  // itself only once it has begun. What a person sends is never sent again.
  function again({detail: {ctx}}) {
    if (ctx?.request?.method !== "GET") return;
    const {sourceElement: source, target, swap, request: {action}} = ctx;
    clearTimeout(waiting.get(source));
    const ask = () => { if (source.isConnected && target.isConnected) htmx.ajax("GET", action, {source, target, swap}); };
    waiting.set(source, setTimeout(ask, AGAIN_SECONDS * SECONDS));
  }

  // A part of a page that cannot be read anew stays as it was, and the person is told that it is old.
  document.addEventListener("htmx:response:error", (event) => {
    const status = event.detail.ctx?.response?.status;
    if (status === 401) {
      const words = "Sign in again in another tab";
      notice("Your session has ended. What you typed here is kept. ", {href: "/sign-in", words});
    } else {
      notice("This page could not be brought up to date, and tries again. What you see may be old.");
      again(event);
    }
  });
  document.addEventListener("htmx:error", (event) => {
    notice("The server does not answer. This page tries again; what you see may be old.");
    again(event);
  });
  // The stream of changes: it comes back by itself, and then says at once that there is something to look at.
  document.addEventListener("htmx:sse:error", () => {
    notice("The server does not answer. This page tries again; what you see may be old.");
  });
  document.addEventListener("htmx:sse:close", () => {
    notice("This page is not kept up to date any more. Load it again.");
  });
  document.addEventListener("htmx:sse:after:connection", () => notice(""));
  document.addEventListener("htmx:after:swap", (event) => {
    if (event.detail.ctx?.response?.status >= 400) return;  // nothing was put in place, and it was told why
    notice("");
    tellAll();
  });

  window.perdure = {notice};
})();
