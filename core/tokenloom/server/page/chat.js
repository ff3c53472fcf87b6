// The conversation: sends it, shows the answer as it streams, and what each answer took.

import { ApiError, request } from "./api.js";
import { TextView } from "./reply.js";
import { eventsOf } from "./sse.js";

const STATS_PERIOD_MS = 250;
const AT_END_PX = 32;
const STATUS_OF_CODE = { engine_unavailable: 503, overloaded: 429, server_stopping: 503 };

const $ = (id) => document.getElementById(id);

export class Chat {
  #log = $("log");
  #turns = [];
  #running = null;
  #askForKey;

  /** `askForKey()` resolves to whether the user gave one. */
  constructor(askForKey) {
    this.#askForKey = askForKey;
    const question = $("question");
    $("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    question.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#send();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.#running && !document.querySelector("dialog[open]")) this.stop();
    });
    $("stop").addEventListener("click", () => this.stop());
    $("again").addEventListener("click", () => this.#regenerate());
    $("new").addEventListener("click", () => this.#clear());
  }

  /** Ends the answer that streams; what has come of it stays. */
  stop() {
    this.#running?.controller.abort();
    $("question").focus();
  }

  #send() {
    const question = $("question");
    if (this.#running || !question.value.trim()) return;
    const settings = readSettings();
    if (settings === null) return;
    const turn = new Turn(question.value);
    question.value = "";
    question.focus();
    $("hint")?.remove();
    this.#turns.push(turn);
    this.#log.append(turn.question, turn.answer);
    this.#log.scrollTop = this.#log.scrollHeight;
    this.#run(turn, settings);
  }

  #regenerate() {
    const turn = this.#turns.at(-1);
    const settings = readSettings();
    if (this.#running || !turn || settings === null) return;
    turn.reset();
    $("question").focus();
    this.#run(turn, settings);
  }

  #clear() {
    this.stop();
    this.#turns.forEach((turn) => {
      turn.question.remove();
      turn.answer.remove();
    });
    this.#turns = [];
    this.#setRunning(null);
  }

  async #run(turn, settings) {
    const run = { controller: new AbortController() };
    this.#setRunning(run);
    const painter = new Painter(this.#log, turn);
    turn.begin();
    try {
      const body = { ...settings, messages: this.#messages(turn) };
      const response = await request("v1/chat/completions", { body, signal: run.controller.signal });
      await readAnswer(response, turn, () => painter.request());
    } catch (error) {
      if (run.controller.signal.aborted) turn.finishReason = "stopped";
      else this.#fail(turn, error);
    }
    painter.close();
    turn.end();
    if (this.#running === run) this.#setRunning(null);
  }

  #fail(turn, error) {
    turn.finishReason = "error";
    const retry = () => {
      if (this.#turns.at(-1) === turn) this.#regenerate();
    };
    turn.showError(error, retry);
    if (error.status === 401) {
      this.#askForKey().then((isGiven) => {
        if (isGiven) retry();
      });
    }
  }

  /** The conversation up to a turn. One that has no answer is left out: templates want question and answer in turn. */
  #messages(turn) {
    const messages = [];
    const system = $("system").value.trim();
    if (system) messages.push({ role: "system", content: system });
    for (const earlier of this.#turns) {
      if (earlier !== turn && !earlier.text) continue;
      messages.push({ role: "user", content: earlier.asked });
      if (earlier !== turn) messages.push({ role: "assistant", content: earlier.text });
    }
    return messages;
  }

  #setRunning(run) {
    this.#running = run;
    $("send").hidden = run !== null;
    $("stop").hidden = run === null;
    $("again").disabled = run !== null || !this.#turns.length;
    $("new").disabled = !this.#turns.length;
  }
}

/** A question and its answer, and where they stand in the page. */
class Turn {
  constructor(asked) {
    this.asked = asked;
    this.question = element("article", "turn question", asked);
    this.answer = element("article", "turn answer");
    this.reset();
  }

  reset() {
    Object.assign(this, { text: "", thoughts: "", usage: null, finishReason: null, firstS: null, lastS: null, numFirst: 0 });
    this.textElement = element("div", "text");
    this.stats = element("p", "stats");
    this.answer.replaceChildren(this.textElement, this.stats);
    this.textView = new TextView(this.textElement);
    this.thoughtsView = null;
  }

  begin() {
    this.startS = now();
    // A screen reader reads the answer once it is whole.
    this.answer.setAttribute("aria-busy", "true");
    this.stats.textContent = "waiting";
  }

  /** Takes one chunk of the stream. */
  take(chunk) {
    const choice = chunk.choices?.[0];
    const { content = "", reasoning_content: thoughts = "" } = choice?.delta ?? {};
    if (chunk.usage) this.usage = chunk.usage;
    if (content || thoughts) {
      this.lastS = now();
      if (this.firstS === null) {
        this.firstS = this.lastS;
        this.numFirst = this.usage?.completion_tokens ?? 1;
      }
      this.text += content;
      this.thoughts += thoughts;
    }
    if (choice?.finish_reason) this.finishReason = choice.finish_reason;
  }

  paint() {
    if (this.thoughts && !this.thoughtsView) {
      const details = element("details", "thoughts");
      const body = element("div");
      details.append(element("summary", "", "Thoughts"), body);
      this.answer.prepend(details);
      this.thoughtsView = new TextView(body);
    }
    this.thoughtsView?.set(this.thoughts);
    this.textView.set(this.text);
  }

  paintStats() {
    const parts = [];
    const { usage } = this;
    if (this.firstS !== null) parts.push(`first token ${seconds(this.firstS - this.startS)}`);
    const numLater = (usage?.completion_tokens ?? 0) - this.numFirst;
    // A rate of an instant means nothing.
    if (numLater > 0 && this.lastS - this.firstS > 0.05) {
      parts.push(`${(numLater / (this.lastS - this.firstS)).toFixed(1)} tokens/s`);
    }
    if (usage) {
      const cached = usage.prompt_tokens_details?.cached_tokens;
      parts.push(`${usage.prompt_tokens} prompt tokens${cached ? ` (${cached} cached)` : ""}`);
      parts.push(`${usage.completion_tokens} answer tokens`);
    }
    if (this.finishReason) parts.push(`end: ${this.finishReason}`);
    this.stats.textContent = parts.join(" · ") || "waiting";
  }

  showError(error, retry) {
    const box = element("p", "problem");
    box.setAttribute("role", "alert");
    box.append(error.status ? `${error.status}: ${error.message}` : error.message);
    if (error.status === 0 || error.status === 429 || error.status === 503) {
      box.append(retryButton(error.retryAfterS ?? 0, retry));
    }
    this.stats.before(box);
  }

  end() {
    this.paint();
    this.paintStats();
    this.answer.removeAttribute("aria-busy");
  }
}

/** Paints a turn at most once a frame, and keeps the end in sight for whoever is there. */
class Painter {
  #log;
  #turn;
  #frame = 0;
  #isAtEnd = true;
  #statsMs = 0;

  constructor(log, turn) {
    this.#log = log;
    this.#turn = turn;
    this.#look();
    log.addEventListener("scroll", this.#look, { passive: true });
  }

  request() {
    this.#frame ||= requestAnimationFrame(this.#paint);
  }

  /** Paints no more; the turn is painted by whoever ends it. */
  close() {
    cancelAnimationFrame(this.#frame);
    // What ends the turn may make it longer.
    requestAnimationFrame(() => {
      this.#follow();
      this.#log.removeEventListener("scroll", this.#look);
    });
  }

  #paint = (nowMs) => {
    this.#frame = 0;
    this.#turn.paint();
    if (nowMs - this.#statsMs >= STATS_PERIOD_MS) {
      this.#statsMs = nowMs;
      this.#turn.paintStats();
    }
    this.#follow();
  };

  #look = () => {
    const log = this.#log;
    this.#isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < AT_END_PX;
  };

  #follow() {
    if (this.#isAtEnd) this.#log.scrollTop = this.#log.scrollHeight;
  }
}

async function readAnswer(response, turn, onNews) {
  let isComplete = false;
  for await (const data of eventsOf(response)) {
    if (data === "[DONE]") {
      isComplete = true;
      continue;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(STATUS_OF_CODE[chunk.error.code] ?? null, chunk.error.message);
    turn.take(chunk);
    onNews();
  }
  if (!isComplete) throw new ApiError(0, "The connection broke off; the answer is not complete.");
}

/** What the user chose for the next request; null, and the field at fault in sight, if it makes no sense. */
function readSettings() {
  const settings = { stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
  for (const input of document.querySelectorAll("#settings input")) {
    if (!input.checkValidity()) {
      for (let box = input.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
      input.reportValidity();
      return null;
    }
    if (input.value !== "") settings[input.name] = input.valueAsNumber;
  }
  return settings;
}

function retryButton(waitS, retry) {
  const button = element("button", "", "");
  button.type = "button";
  const show = (leftS) => {
    button.disabled = leftS > 0;
    button.textContent = leftS > 0 ? `Try again in ${leftS} s` : "Try again";
    if (leftS > 0) setTimeout(show, 1000, leftS - 1);
  };
  show(Math.ceil(waitS));
  button.addEventListener("click", retry);
  return button;
}

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

function now() {
  return performance.now() / 1000;
}

function seconds(value) {
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(2)} s`;
}
