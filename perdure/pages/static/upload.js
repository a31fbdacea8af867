// Files of a conversation: a chosen file is uploaded before the message, and a file that is too large is not sent. Without
// this script a file has its own button, and the server rejects large files.
"use strict";

(() => {
  const chosen = () => document.getElementById("file")?.files[0];
  let thenSay = false;

  document.addEventListener("submit", (event) => {
    const field = document.getElementById("file"), isMessage = event.target.id === "say";
    if (!chosen() || !isMessage && event.target !== field.form) return;
    const isTooLong = chosen().size > Number(field.dataset.mostBytes);
    if (!isTooLong && !isMessage) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    thenSay = isMessage && !isTooLong;
    if (thenSay) field.form.requestSubmit();
    else perdure.notice(`The file is too large: the limit is ${field.dataset.most}. Nothing was sent.`, {ofSent: true});
  }, true);

  document.addEventListener("htmx:finally:request", ({detail: {ctx}}) => {
    if (!thenSay || !ctx.request.action.endsWith("/files")) return;
    thenSay = false;
    if (!chosen() && !document.querySelector("#files .problem")) document.getElementById("say").requestSubmit();
  });
})();
