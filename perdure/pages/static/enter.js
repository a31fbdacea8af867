// Submits the only form of a sign-in link's page. Without this script the form has a button.
"use strict";

document.addEventListener("DOMContentLoaded", () => document.querySelector("form[data-enter]")?.requestSubmit());
