// A live conversation: streamed tokens, and each turn rendered again by the server when it has changed. Without this
// script the page works with forms and reloads.
"use strict";

(() => {
  const CHANGES = [
    "ready", "queued", "message.joined", "generation.complete", "tools.pending", "tool.awaiting_approval",
    "tool.approved", "tool.denied", "tool.executing", "tool.result", "tool.error", "clarification.requested",
    "client_run.requested", "stopped", "workflow.error", "done",
  ];
  // The same invisible characters that the server writes out (perdure/core/text.py).
  const HIDDEN = /((?:(?![\n\t])[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\u115f\u1160\u2800\u3164\uffa0\u{E0100}-\u{E01EF}])+)/u;

  const turns = document.getElementById("turns");
  if (!turns?.dataset.stream) return;
  const doing = document.getElementById("doing");
  const reading = new Map();
  const led = new Set();
  let lastId = "";

  // Writes untrusted text: without markup, and with invisible characters written out.
  function write(place, text) {
    text.split(HIDDEN).forEach((piece, at) => {
      if (!piece) return;
      if (at % 2) {
        const mark = document.createElement("span");
        mark.className = "unseen";
        mark.title = "an invisible character, written out";
        for (let unit = 0; unit < piece.length; unit++) mark.append(`\\u${piece.charCodeAt(unit).toString(16).padStart(4, "0")}`);
        place.append(mark);
      } else if (place.lastChild?.nodeType === Node.TEXT_NODE) place.lastChild.appendData(piece);
      else place.append(piece);
    });
  }

  function sectionOf(turn) {
    let section = document.getElementById(`turn-${turn}`);
    if (section) return section;
    section = document.createElement("section");
    section.className = "turn";
    section.id = `turn-${turn}`;
    section.setAttribute("aria-label", `Turn ${turns.querySelectorAll(".turn").length + 1}`);
    const rendered = document.createElement("div"), live = document.createElement("div");
    rendered.id = `rendered-${turn}`;
    rendered.dataset.open = "";
    live.className = "live";
    section.append(rendered, live);
    turns.querySelector(".starts")?.remove();
    turns.append(section);
    return section;
  }

  const isTold = (section, call) => section.querySelector(`[data-call~="${CSS.escape(call)}"]`);

  function pieceOf(section, call) {
    const live = section.querySelector(".live");
    let piece = live.querySelector(`[data-live="${CSS.escape(call)}"]`);
    if (piece) return piece;
    piece = document.createElement("p");
    piece.className = "theirs outside";
    piece.dataset.live = call;
    live.append(piece);
    return piece;
  }

  const atEnd = () => innerHeight + scrollY >= document.documentElement.scrollHeight - 120;

  function keepingEnd(change) {
    const was = atEnd();
    change();
    if (was) scrollTo(0, document.documentElement.scrollHeight);
  }

  // Shows the activity of an open turn, and the choice of what a new message does to it.
  function look() {
    const open = turns.querySelector("[data-open]"), way = document.getElementById("way");
    const words = open?.dataset.open ?? "";
    if (doing.textContent !== words) doing.textContent = words;
    if (way) way.hidden = way.disabled = !open;
    lead(open?.querySelector(".ask textarea"));
  }

  // Focuses the answer to a new question, unless the user has begun to type something else.
  function lead(answer) {
    const message = document.getElementById("message");
    if (!message) return;
    message.placeholder = answer ? "Write a message to send after this question" : "Write a message";
    if (!answer || led.has(answer.form.action)) return;
    led.add(answer.form.action);
    if (!message.value && [message, document.body].includes(document.activeElement)) answer.focus();
  }

  async function refresh(turn) {
    if (reading.has(turn)) {
      reading.set(turn, true);
      return;
    }
    reading.set(turn, false);
    const was = atEnd();
    sectionOf(turn);
    try {
      await htmx.ajax("GET", turns.dataset.turns + turn, {source: `#rendered-${turn}`, target: `#rendered-${turn}`, swap: "outerMorph"});
    } catch (error) {
      console.debug(error);
    }
    const again = reading.get(turn);
    reading.delete(turn);
    if (was) scrollTo(0, document.documentElement.scrollHeight);
    if (again) refresh(turn);
  }

  function onToken(data) {
    const section = sectionOf(data.turn_id);
    if (!isTold(section, data.call_id)) keepingEnd(() => write(pieceOf(section, data.call_id), data.text));
  }

  function onReset(data) {
    document.getElementById(`turn-${data.turn_id}`)?.querySelector(`[data-live="${CSS.escape(data.call_id)}"]`)?.remove();
  }

  function onTitle(data) {
    const title = document.getElementById("title");
    title.replaceChildren();
    write(title, String(data.title));
    document.getElementById("with").hidden = false;
  }

  function streamNow() {
    const [path] = turns.dataset.stream.split("?");
    return lastId ? `${path}?after=${encodeURIComponent(lastId)}` : turns.dataset.stream;
  }

  function listen(source) {
    const on = (kind, act) => source.addEventListener(kind, (event) => {
      lastId = event.lastEventId || lastId;
      act(JSON.parse(event.data));
    });
    on("token", onToken);
    on("reset", onReset);
    on("thinking", () => { doing.textContent = "Thinking…"; });
    on("conversation.title.generated", onTitle);
    CHANGES.forEach((kind) => on(kind, (data) => refresh(data.turn_id)));
  }

  // Refreshing a turn shows why the stream was lost, for example because the session has ended.
  function lost() {
    const last = turns.querySelector(".turn:last-of-type");
    if (last) refresh(last.id.slice(5));
  }

  document.addEventListener("htmx:after:swap", () => {
    const form = document.getElementById("say");
    if (form?.dataset.started) {
      refresh(form.dataset.started);
      delete form.dataset.started;
      form.querySelector("textarea").focus();
      scrollTo(0, document.documentElement.scrollHeight);
    }
    turns.querySelectorAll("[data-live]").forEach((piece) => {
      if (isTold(piece.closest(".turn"), piece.dataset.live)) piece.remove();
    });
    look();
  });

  // The browser stores a size that the user dragged as a style attribute. The page's policy lets no script copy that
  // attribute, and a swap would. A style sheet keeps the size instead.
  const dragged = new CSSStyleSheet();
  document.adoptedStyleSheets.push(dragged);
  new MutationObserver(() => {
    const message = document.getElementById("message");
    if (!message?.hasAttribute("style")) return;
    if (message.style.height) dragged.replaceSync(`#message { height: ${message.style.height}; }`);
    message.removeAttribute("style");
  }).observe(document.body, {subtree: true, attributes: true, attributeFilter: ["style"]});

  document.addEventListener("keydown", (event) => {
    if (event.target.id !== "message" || event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    if (matchMedia("(hover: none)").matches) return;  // on a phone's keyboard Enter is a line end
    event.preventDefault();
    event.target.form.requestSubmit();
  });

  if (!location.hash) scrollTo(0, document.documentElement.scrollHeight);
  perdure.follow(streamNow, listen, lost);
})();
