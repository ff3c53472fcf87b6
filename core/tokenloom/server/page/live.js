// Watches the engine: asks twice a second while somebody looks, says what is wrong, and goes on by itself.

import { hasKey, request } from "./api.js";
import { drawBars, drawKvMap } from "./charts.js";

const PERIOD_MS = 500;
const RETRY_MS = 1000;
const SLOW_MS = 2000;
const GIVE_UP_MS = 60000;
const NUM_SECONDS = 60;
const NUM_STEPS = 120;

const $ = (id) => document.getElementById(id);
const count = new Intl.NumberFormat("en");

export class LiveEngine {
  #timer = 0;
  #slowTimer = 0;
  #controller = null;
  #data = null;
  #texts = new Map([...document.querySelectorAll("[data-live]")].map((element) => [element.dataset.live, element]));
  #onKeyMissing;

  /** `onKeyMissing()` is told when the server wants a key. */
  constructor(onKeyMissing) {
    this.#onKeyMissing = onKeyMissing;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#pause() : this.resume()));
    new ResizeObserver(() => this.#draw()).observe($("engine"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
  }

  /** Asks now, and again and again. */
  resume() {
    this.#pause();
    if (!document.hidden) this.#poll();
  }

  #pause() {
    clearTimeout(this.#timer);
    clearInterval(this.#slowTimer);
    this.#controller?.abort();
    this.#controller = null;
  }

  async #poll() {
    const controller = (this.#controller = new AbortController());
    const startMs = performance.now();
    this.#slowTimer = setInterval(() => this.#noteSilence(performance.now() - startMs), 1000);
    let waitMs = PERIOD_MS;
    try {
      const response = await request("debug/live", { signal: controller.signal });
      this.#data = await response.json();
      if (controller.signal.aborted) return;
      this.#show();
    } catch (error) {
      if (this.#controller !== controller) return;
      waitMs = this.#fail(error);
    } finally {
      if (this.#controller === controller) clearInterval(this.#slowTimer);
    }
    if (waitMs !== null) this.#timer = setTimeout(() => this.#poll(), waitMs);
  }

  #noteSilence(silentMs) {
    if (silentMs < SLOW_MS) return;
    const text = `no answer for ${Math.floor(silentMs / 1000)} s`;
    this.#setState("wait", text);
    $("engine").classList.add("stale");
    if (silentMs > GIVE_UP_MS) this.resume();
  }

  /** Shows what is wrong; when to ask again, or null where only a key helps. */
  #fail(error) {
    if (error.status === 401) {
      this.#setState("bad", "API key needed", hasKey() ? error.message : "The engine is shown to those who have an API key.");
      this.#onKeyMissing();
      return null;
    }
    const [state, problem] = error.status === 503 ? ["engine unavailable", error.message]
      : error.status ? ["no data", `${error.status}: ${error.message}`] : ["unreachable", error.message ?? String(error)];
    this.#setState("bad", state, problem);
    return RETRY_MS;
  }

  #setState(level, text, problem = "") {
    $("state").dataset.level = level;
    setText($("state-text"), text);
    setText($("problem"), problem);
    $("problem").hidden = !problem;
    $("engine").classList.toggle("stale", level === "bad");
  }

  #show() {
    const { engine, ...server } = this.#data;
    const numLive = engine.running + engine.waiting;
    if (server.is_draining) this.#setState("wait", "stopping", "The server is stopping and takes no more requests.");
    else this.#setState("ok", numLive ? `${count.format(numLive)} live` : "idle");
    setText($("model"), server.model);
    for (const [name, text] of Object.entries(textsOf(engine, server))) setText(this.#texts.get(name), text);
    this.#draw();
  }

  #draw() {
    if (!this.#data || !$("engine").clientWidth) return;
    const { engine } = this.#data;
    drawBars($("rate-chart"), engine.output_tokens_by_s.map((value) => [value]), ["decode"], NUM_SECONDS);
    drawKvMap($("kv-map"), engine.kv.maps);
    const tokens = engine.steps.map(([, prompt, decode, drafts]) => [decode, drafts, prompt]);
    drawBars($("step-chart"), tokens, ["decode", "draft", "prompt"], NUM_STEPS);
    drawBars($("time-chart"), engine.steps.map((step) => [step[5]]), ["time"], NUM_STEPS);
  }
}

/** The text of each place that is marked data-live. */
function textsOf(engine, server) {
  const { kv, minute, steps } = engine;
  const last = steps.at(-1);
  const texts = {
    output_rate: rate(engine.output_tokens_per_s),
    prompt_rate: rate(engine.prompt_tokens_per_s),
    prefix: minute.prefix_queries ? `${((100 * minute.prefix_hits) / minute.prefix_queries).toFixed(0)} %` : "–",
    running: `${count.format(engine.running)} / ${count.format(server.max_num_seqs)}`,
    waiting: count.format(engine.waiting) + (server.max_queued_requests === null ? "" : ` / ${count.format(server.max_queued_requests)}`),
    preemptions: count.format(minute.num_preemptions),
    num_steps: `${count.format(engine.num_steps)} in all`,
    "step.prompt": last ? count.format(last[1]) : "–",
    "step.decode": last ? count.format(last[2]) : "–",
    "step.draft": last ? count.format(last[3]) : "–",
    "step.max": steps.length ? count.format(Math.max(...steps.map((step) => step[1] + step[2] + step[3]))) : "–",
    "step.time": last ? seconds(last[5]) : "–",
    "step.max_time": steps.length ? seconds(Math.max(...steps.map((step) => step[5]))) : "–",
    about: aboutOf(engine, server),
    ...kvTexts(kv, server.block_size),
  };
  for (const name of ["ttft_s", "tpot_s", "queue_s"]) {
    texts[`${name}.p50`] = seconds(engine[name].p50);
    texts[`${name}.p99`] = seconds(engine[name].p99);
    texts[`${name}.count`] = count.format(engine[name].count);
  }
  return texts;
}

function kvTexts({ usage, num_shared: numShared, blocks_per_cell: perCell }, blockSize) {
  const numUsable = usage.free + usage.cached + usage.active + usage.in_transfer;
  const share = numUsable ? (100 * (usage.active + usage.in_transfer)) / numUsable : 0;
  const cell = Math.max(...perCell);
  return {
    kv_usage: `${share.toFixed(share < 10 ? 1 : 0)} % of ${count.format(numUsable)} in use`,
    "kv.free": count.format(usage.free),
    "kv.cached": count.format(usage.cached),
    "kv.active": count.format(usage.active - numShared),
    "kv.shared": count.format(numShared),
    "kv.in_transfer": count.format(usage.in_transfer),
    kv_note: `A block holds ${blockSize} tokens; a cell is ${cell === 1 ? "one block" : `up to ${cell} blocks and shows the busiest`}.`,
  };
}

function aboutOf(engine, server) {
  const plugins = Object.entries(server.plugins).map(([kind, name]) => `${kind}=${name}`);
  const restarts = server.num_engine_restarts ? [`engine restarts ${server.num_engine_restarts}`] : [];
  const preempted = engine.num_preemptions ? [`preemptions since the start ${count.format(engine.num_preemptions)}`] : [];
  const length = `at most ${count.format(server.max_model_len)} tokens a request`;
  return [`tokenloom ${server.version}`, length, ...plugins, ...preempted, ...restarts].join(", ");
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function rate(value) {
  return value >= 100 ? count.format(Math.round(value)) : value.toFixed(1);
}

function seconds(value) {
  if (value === null) return "–";
  return value < 1 ? `${(value * 1000).toFixed(value < 0.1 ? 1 : 0)} ms` : `${value.toFixed(2)} s`;
}
