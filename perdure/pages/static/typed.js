// Restores typed text on an approval's page after Back, a preview or a claim. It is kept in this tab, for this user, until
// the decision or until sign-out. Without this script, the page's own links back keep the text.
"use strict";

(() => {
  const FIELDS = "main form :is(input:not([type=hidden]), select, textarea)[id]";
  const OF_THE_CALL = /^(arg|gives)\.|^json$/;

  const isTicked = (field) => /^(checkbox|radio)$/.test(field.type);
  const of = (field) => isTicked(field) ? field.checked : field.value;

  function was(field) {
    if (isTicked(field)) return field.defaultChecked;
    if (field.tagName !== "SELECT") return field.defaultValue;
    return [...field.options].find((option) => option.defaultSelected)?.value ?? field.options[0]?.value;
  }

  const digest = () => document.querySelector(".decide [name=digest]")?.value;

  // Text that the server rendered from an earlier form was typed, too.
  function keep(place) {
    const fields = [...document.querySelectorAll(FIELDS)];
    const typed = fields.filter((field) => "drawn" in place.dataset || of(field) !== was(field));
    const kept = {digest: digest(), fields: typed.map((field) => [field.id, of(field)])};
    try {
      if (typed.length) sessionStorage.setItem(place.dataset.typed, JSON.stringify(kept));
      else sessionStorage.removeItem(place.dataset.typed);
    } catch { /* storage is full or not allowed */ }
  }

  function bringBack(place) {
    const kept = JSON.parse(sessionStorage.getItem(place.dataset.typed) ?? "null");
    for (const [id, value] of kept?.fields ?? []) {
      const field = document.getElementById(id);
      if (!field || kept.digest !== digest() && OF_THE_CALL.test(id) || of(field) === value) continue;
      field[isTicked(field) ? "checked" : "value"] = value;
      for (let at = field.closest("details"); at; at = at.parentElement.closest("details")) at.open = true;
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    const place = document.querySelector("[data-typed]"), dropped = document.querySelector("[data-drops]");
    dropped?.addEventListener("click", () => sessionStorage.removeItem(dropped.dataset.drops));
    if (!place) return;
    if ("over" in place.dataset) return sessionStorage.removeItem(place.dataset.typed);
    if (!("drawn" in place.dataset)) bringBack(place);
    window.addEventListener("pagehide", () => keep(place));
  });
})();
