// The page: asks /router/history every two seconds and shows it. All text from outside is set as text.

import { bar, lines, shares, short } from "/router/plots.js";

const PERIOD = 2000, SHOWN_SECONDS = 600, LINES_MAX = 8;
const PARTS = ["queue", "local", "shared", "compute"];
const NAMES = { local: "GPU of the replica", dram: "its host memory", shared: "shared tier", computed: "computed" };
const at = (id) => document.getElementById(id);

function cells(row, ...values) {
  for (const value of values) {
    const { text, kind, node } = typeof value === "object" && value !== null ? value : { text: value };
    const cell = document.createElement("td");
    if (kind) cell.className = kind;
    cell.append(node ?? `${text ?? ""}`);
    row.append(cell);
  }
  return row;
}

const number = (text) => ({ text, kind: "n" });

// The parts of a reason: queue=1.0;local=...;runner-up=b:8000,12.0
function parsed(reason) {
  return Object.fromEntries(reason.split(";").map((part) => part.split(/=(.*)/s).slice(0, 2)));
}

// Buckets without gaps: a bucket nobody wrote is one in which nothing happened.
function filled(history) {
  const step = history.bucket_seconds, known = new Map(history.buckets.map((one) => [one.start, one]));
  const last = history.buckets.length ? history.buckets[history.buckets.length - 1].start : 0;
  const first = Math.max(last - SHOWN_SECONDS, history.buckets.length ? history.buckets[0].start : 0);
  const filled = [];
  for (let start = first; start <= last; start += step) {
    filled.push(known.get(start) ?? { start, requests: 0, tokens: [0, 0, 0, 0], in_flight: {}, pending_s: {}, p50_ms: null, p95_ms: null });
  }
  return filled;
}

function byReplica(buckets, ids, field) {
  return ids.slice(0, LINES_MAX).map((id, colour) => ({
    name: id, colour, values: buckets.map((one) => one[field][id] ?? null),
  }));
}

function plots(history) {
  const buckets = filled(history), times = buckets.map((one) => one.start);
  const ids = history.sight.replicas.map((one) => one.id);
  lines(at("load"), times, byReplica(buckets, ids, "in_flight"));
  lines(at("pending"), times, byReplica(buckets, ids, "pending_s"), (value) => `${short(value)} s`);
  shares(at("hits"), times, history.sources.map((source, colour) => ({
    name: NAMES[source] ?? source, colour, values: buckets.map((one) => one.tokens[colour]),
  })));
  lines(at("ttft"), times, [
    { name: "median", colour: 0, values: buckets.map((one) => one.p50_ms) },
    { name: "95th percentile", colour: 2, values: buckets.map((one) => one.p95_ms) },
  ], (value) => (value >= 1000 ? `${short(value / 1000)} s` : `${short(value)} ms`));
}

function replicas(rows) {
  at("replicas").tBodies[0].replaceChildren(...rows.map((one) => cells(
    document.createElement("tr"), one.id, { text: one.state, kind: one.state },
    number(one.in_flight), number(`${short(one.pending_s)} s`),
    number(`${Math.round(100 * one.kv_usage)} %`), number(short(1e6 * one.token_s)),
    number(`${short(one.shared_bytes_per_s / 1e9)} GB/s`),
    { text: one.trust.toFixed(2) + (one.has_alarm ? " !" : ""), kind: one.has_alarm ? "n alarm" : "n" },
    one.trouble,
  )));
}

function decisions(rows) {
  const shown = rows.map((one) => ({ ...one, parts: parsed(one.reason) }));
  const sum = (one) => PARTS.reduce((total, part) => total + Number(one.parts[part] ?? 0), 0);
  const most = Math.max(...shown.map(sum), 1e-9);
  at("decisions").tBodies[0].replaceChildren(...shown.map((one) => cells(
    document.createElement("tr"), new Date(1000 * one.at).toLocaleTimeString(),
    `${one.kind} ${one.model}`, number(short(one.prompt_tokens)), number(short(one.cached_tokens)),
    one.replica,
    { node: bar(PARTS.map((name, colour) => ({ name, colour, value: Number(one.parts[name] ?? 0) })), most) },
    number(one.parts.total ?? ""), (one.parts["runner-up"] ?? "").replace(",", " "),
    number(one.ttft_ms ?? ""),
    { text: one.outcome, kind: ["answered", "abandoned", "under way"].includes(one.outcome) ? one.outcome : "failed" },
  )));
}

function summary(sight) {
  const ready = sight.replicas.filter((one) => one.state === "ready").length;
  const trust = sight.predicted_tokens
    ? ` · reported ${Math.round((100 * sight.reported_tokens) / sight.predicted_tokens)} % of predicted cached tokens` : "";
  at("summary").textContent = `${ready} of ${sight.replicas.length} replicas ready · policy ${sight.policy}`
    + ` · ${sight.reservations} requests under way · regret ${short(sight.regret_seconds)} s${trust}`
    + (sight.workers > 1 ? ` · ${sight.workers} processes` : "");
}

async function look() {
  try {
    const answer = await fetch("/router/history", { cache: "no-store" });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const history = await answer.json();
    summary(history.sight);
    plots(history);
    replicas(history.sight.replicas);
    decisions(history.decisions);
    at("trouble").hidden = true;
    document.body.dataset.looks = Number(document.body.dataset.looks ?? 0) + 1;
  } catch (error) {
    at("trouble").textContent = `no answer from the router: ${error.message}`;
    at("trouble").hidden = false;
  }
  setTimeout(look, PERIOD);
}

at("parts").textContent = "Estimate: queue, host memory, shared tier, compute, in this order from left to right; "
  + "loading overlaps with queueing, so the total is less than their sum.";
look();
