// The keys of the reviewer pages, and what a page does when somebody else decides under it. Without it all of it works
// by links, buttons and a look at the page again.
"use strict";

(() => {
  const OFF = "perdure.keys.off";

  const find = (selector) => document.querySelector(selector);

  const FIELDS = "input:not([type=hidden]), select, textarea";

  // To an edit's first field: its button stands behind all of them.
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

  // In the list a decision's key opens the row at that decision; on the row's own page it goes to the button.
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
    button.textContent = off ? "Switch the keys on" : "Switch the keys off";
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

  // What the server says of the queue makes the page read its part anew; so does a stream that is lost, which tells why.
  document.addEventListener("DOMContentLoaded", () => {
    const stream = find("[data-follows]")?.dataset.follows;
    const look = () => document.body.dispatchEvent(new Event("approvals"));
    if (stream) perdure.follow(() => stream, (source) => source.addEventListener("approvals", look), look);
  });

  // Somebody decided, or the time is over: what is typed stays, nothing can be sent any more.
  document.addEventListener("htmx:after:swap", () => {
    const mine = find(".counts strong")?.textContent;
    if (mine) document.title = document.title.replace(/\(\d+\)/, `(${mine})`);
    if (!find("#state [data-closed]")) return;
    document.querySelectorAll("[data-decides] button").forEach((button) => { button.disabled = true; });
  });

  // A form is sent once; the page comes back with a new one.
  document.addEventListener("submit", (event) => {
    if (event.defaultPrevented || !event.target.matches("[data-decides]")) return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "1";
  });
  window.addEventListener("pageshow", () => {
    document.querySelectorAll("[data-sent]").forEach((form) => { delete form.dataset.sent; });
  });
})();
