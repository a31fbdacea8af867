// Keyboard shortcuts of the reviewer pages, and updates after decisions of other reviewers. Without this script the pages
// work with links, buttons and reloads.
"use strict";

(() => {
  const OFF = "perdure.keys.off";

  const find = (selector) => document.querySelector(selector);

  const FIELDS = "input:not([type=hidden]), select, textarea";

  // Focuses the first field of an edit, because its button comes after all fields.
  function go(selector) {
    const button = find(selector);
    const target = selector === "#edit" && button?.form.querySelector(FIELDS) || button;
    if (!target) return false;
    target.closest("details")?.setAttribute("open", "");
    target.focus();
    target.scrollIntoView({block: "nearest"});
    return true;
  }

  function rows() {
    return [...document.querySelectorAll("[data-row]")];
  }

  function step(by) {
    const all = rows();
    if (!all.length) return find(by > 0 ? "a[rel=next]" : "a[rel=prev]")?.click();
    const at = all.indexOf(document.activeElement);
    const to = at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + by, 0), all.length - 1);
    all[to].focus();
  }

  // In the list, a decision's key opens the row's page at that decision. On that page, it focuses the button.
  function decide(part) {
    if (go(`#${part}`)) return;
    const row = rows().includes(document.activeElement) ? document.activeElement : rows()[0];
    if (row) location.assign(`${row.href}#${part}`);
    else go("#whole");
  }

  const KEYS = {
    j: () => step(1),
    k: () => step(-1),
    a: () => decide("approve"),
    e: () => decide("edit"),
    r: () => decide("reject"),
    u: () => find("a[data-up]")?.click(),
  };

  function typing(element) {
    return element.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName);
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.repeat && event.key !== "j" && event.key !== "k") return;
    if (localStorage.getItem(OFF)) return;
    if (event.key === "Escape" && typing(document.activeElement)) return document.activeElement.blur();
    if (!KEYS[event.key] || typing(event.target) && !/^(checkbox|radio)$/.test(event.target.type)) return;
    event.preventDefault();
    KEYS[event.key]();
  });

  function arrive() {
    const part = location.hash.slice(1);
    if (["approve", "edit", "reject"].includes(part)) go(`#${part}`) || go("#whole");
  }

  function tellKeys(button) {
    const off = localStorage.getItem(OFF);
    button.hidden = false;
    button.textContent = off ? "Turn shortcuts on" : "Turn shortcuts off";
  }

  document.addEventListener("DOMContentLoaded", () => {
    arrive();
    const button = find("[data-keys]");
    if (!button) return;
    tellKeys(button);
    button.addEventListener("click", () => {
      if (localStorage.getItem(OFF)) localStorage.removeItem(OFF);
      else localStorage.setItem(OFF, "1");
      tellKeys(button);
    });
  });
  window.addEventListener("hashchange", arrive);

  // An event of the queue makes the page reload its part. So does a lost stream, because the response shows the reason.
  document.addEventListener("DOMContentLoaded", () => {
    const stream = find("[data-follows]")?.dataset.follows;
    const look = () => document.body.dispatchEvent(new Event("approvals"));
    if (stream) perdure.follow(() => stream, (source) => source.addEventListener("approvals", look), look);
  });

  // If the request is decided or has expired, the typed text stays, but nothing can be sent. The form that withdraws
  // stays usable until the response removes it.
  document.addEventListener("htmx:after:swap", () => {
    const mine = find(".counts strong")?.textContent;
    if (mine) document.title = document.title.replace(/\(\d+\)/, `(${mine})`);
    if (!find("#state [data-closed]")) return;
    document.querySelectorAll("[data-decides]:not(#withdraw *) button").forEach((button) => { button.disabled = true; });
  });

  // A form is sent once; the next page contains a new one.
  document.addEventListener("submit", (event) => {
    if (event.defaultPrevented || !event.target.matches("[data-decides]")) return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "1";
  });
  window.addEventListener("pageshow", () => {
    document.querySelectorAll("[data-sent]").forEach((form) => { delete form.dataset.sent; });
  });
})();
