// Shared by all pages: times that are kept up to date, and notices of a lost connection. Pages work without this script.
"use strict";

(() => {
  const SECONDS = 1000, AGAIN_SECONDS = 3, FIRST_WAIT = 500, MOST_WAIT = 15000;
  const AWAY = "The server is not responding. This page keeps trying; its content may be outdated.";
  const waiting = new WeakMap();

  function span(seconds) {
    const minutes = Math.floor(seconds / 60), hours = Math.floor(seconds / 3600);
    if (minutes < 1) return `${Math.floor(seconds)} s`;
    if (hours < 1) return `${minutes} min`;
    return hours < 24 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
  }

  function updateTime(time) {
    const at = Date.parse(time.dateTime), now = Date.now();
    const left = (at - now) / SECONDS;
    let words = `${span(Math.max(-left, 0))} ago`;
    if (time.dataset.updated === "until") words = left > 0 ? `in ${span(left)}` : "now";
    if (time.textContent !== words) time.textContent = words;
  }

  function updateTimes() {
    document.querySelectorAll("time[data-updated=since], time[data-updated=until]").forEach(updateTime);
  }

  // A notice about an outdated page is removed when the page is up to date again. A notice about a form stays until a form
  // is sent. Neither replaces the other.
  function notice(words, {link, ofSent = false} = {}) {
    const place = document.getElementById("notice"), of = ofSent ? "sent" : "page";
    const line = place.querySelector(`[data-of=${of}]`) ?? document.createElement("p");
    if (!words) return line.remove();
    if (line.textContent === words) return;
    [line.dataset.of, line.textContent] = [of, words];
    if (link) {
      const anchor = document.createElement("a");
      [anchor.href, anchor.target, anchor.textContent] = [link.href, "_blank", link.words];
      line.append(" ", anchor);
    }
    place.append(line);
  }

  document.addEventListener("DOMContentLoaded", updateTimes);
  // The response to a form gets the address of the form's page in the history, so that Back or a reload does not resend it.
  document.addEventListener("DOMContentLoaded", () => {
    const {at} = document.getElementById("main").dataset;
    if (at) history.replaceState(null, "", at);
    document.querySelector(".who")?.addEventListener("submit", () => sessionStorage.clear());
  });
  setInterval(updateTimes, SECONDS);

  const isReading = (ctx) => ctx?.request?.method === "GET";

  // Polling stops while the tab is hidden.
  document.addEventListener("htmx:before:request", (event) => {
    if (document.hidden && event.detail.ctx.sourceElement.matches("[hx-trigger^=every]")) event.preventDefault();
  });

  // A failed read is retried: the next change can be far off, and a stream reconnects by itself only after it has opened
  // once. A user's form is never sent again.
  function again({detail: {ctx}}) {
    const {sourceElement: source, target, swap, request: {action}} = ctx;
    clearTimeout(waiting.get(source));
    const ask = () => { if (source.isConnected && target.isConnected) htmx.ajax("GET", action, {source, target, swap}); };
    waiting.set(source, setTimeout(ask, AGAIN_SECONDS * SECONDS));
  }

  // Sends a form of an earlier session without htmx. The next page then shows the typed text.
  function sendPlainly({form, submitter}) {
    if (submitter?.name) {
      const hidden = document.createElement("input");
      [hidden.type, hidden.name, hidden.value] = ["hidden", submitter.name, submitter.value];
      form.append(hidden);
    }
    form.submit();
  }

  // A part of a page that cannot be updated stays, with a notice that it may be old. If a form is rejected, the notice
  // quotes the server's message.
  document.addEventListener("htmx:response:error", (event) => {
    const {ctx} = event.detail;
    if (ctx.response.status === 401) {
      const words = "Sign in again in another tab";
      notice("Your session has ended. Your input is kept. ", {link: {href: "/sign-in", words}});
    } else if (isReading(ctx)) {
      notice("This page could not be updated and keeps trying. Its content may be outdated.");
      again(event);
    } else if (ctx.response.headers.get("Perdure-Form") === "stale") {
      sendPlainly(ctx.request);
    } else {
      const alert = new DOMParser().parseFromString(ctx.text, "text/html").querySelector("[role=alert]");
      notice(`${alert?.textContent ?? "The server could not process the request."} Nothing was sent.`, {ofSent: true});
    }
  });
  document.addEventListener("htmx:error", (event) => {
    const {ctx} = event.detail;
    if (isReading(ctx)) {
      notice(AWAY);
      again(event);
    } else if (ctx) {
      notice("The server is not responding. Send it again in a moment; it counts only once.", {ofSent: true});
    }
  });
  // Follows a stream while the page is visible: a browser has six connections to a server, and hidden tabs would use them
  // all. A lost stream is reconnected; `lost` can find the reason.
  function follow(addressOf, listen, lost) {
    let source = null, wait = FIRST_WAIT, retry = 0;
    function connect() {
      clearTimeout(retry);
      source?.close();
      source = null;
      if (document.hidden) return;
      source = new EventSource(addressOf());
      source.onopen = () => {
        wait = FIRST_WAIT;
        notice("");
      };
      source.onerror = () => {
        notice(AWAY);
        if (source.readyState !== EventSource.CLOSED) return;  // otherwise the browser reconnects
        retry = setTimeout(connect, wait);
        wait = Math.min(wait * 2, MOST_WAIT);
        lost();
      };
      listen(source);
    }
    document.addEventListener("visibilitychange", connect);
    addEventListener("pagehide", () => source?.close());
    addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
    connect();
  }

  document.addEventListener("htmx:after:swap", (event) => {
    const {ctx} = event.detail;
    if (ctx?.response?.status >= 400) return;  // nothing was swapped, and a notice shows the reason
    notice("", {ofSent: Boolean(ctx) && !isReading(ctx)});
    updateTimes();
  });

  window.perdure = {notice, follow};
})();
