// The one form of a link's page sends itself; without this it has a button.
"use strict";

document.addEventListener("DOMContentLoaded", () => document.querySelector("form[data-enter]")?.requestSubmit());
