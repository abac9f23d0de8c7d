// The page of tokctl serve: fetches status.json each second. It has no other source, and sends
// nothing.
"use strict";

let last = null, answered = 0;

const at = (id) => document.getElementById(id);

function short(value) {
	let unit = 0;
	for (; value >= 999.5 && unit < 5; unit++)
		value /= 1000;
	return unit ? value.toPrecision(3) + " " + "kMGTP"[unit - 1] : String(Math.round(value));
}

const bytes = (value) => short(value).replace(/^[\d.]+$/, "$& ") + "B";
const percent = (share) => Number((100 * share).toPrecision(3)) + " %";
const sum = (values) => Object.values(values).reduce((a, b) => a + b, 0);

function duration(ms) {
	const s = Math.floor(ms / 1000);
	return s < 120 ? s + " s" : s < 7200 ? Math.floor(s / 60) + " min" : s < 172800 ?
		Math.floor(s / 3600) + " h" : Math.floor(s / 86400) + " days";
}

// Fills a table. A column is its head, a function that returns a cell's content, its class, and a
// function that returns whether the cell is red.
function fill(id, columns, items) {
	const table = at(id), head = table.createTHead(), body = document.createElement("tbody");
	const put = (tr, tag, content, kind) => {
		const cell = tr.appendChild(document.createElement(tag));
		cell.append(content);
		cell.className = kind;
	};
	table.replaceChildren(head, body);
	head.replaceChildren(document.createElement("tr"));
	for (const [name, , kind = ""] of columns)
		put(head.rows[0], "th", name, kind);
	for (const item of items) {
		const tr = body.insertRow();
		for (const [, content, kind = "", red] of columns)
			put(tr, "td", content(item), kind + (red && red(item) ? " bad" : ""));
	}
}

const by = (keys) => (item) => keys.map((key) => item[key]).join("\0");

// @items with .rate(value): how much value(item) grew per second since the answer before; 0 after
// a restart, because counters begin anew.
function rated(items, before, keys, seconds) {
	const then = new Map(before.map((item) => [by(keys)(item), item]));
	return items.map((item) => ({...item, rate: (value) => {
		const old = then.get(by(keys)(item)), grown = old ? value(item) - value(old) : 0;
		return grown > 0 && seconds > 0 ? grown / seconds : 0;
	}}));
}

// The parts of what @of adds up to: "web 70 %, code 30 %"; "" if that is nothing.
const parts = (of) => sum(of) ? Object.entries(of).map(([name, part]) =>
	name + " " + percent(part / sum(of))).join(", ") : "";
const ago = (of) => of.last ? of.last + ", " + duration(1000 * of.last_ago_s) + " ago" : "";

// ---- tables ----

const STREAMS = [["stream", (s) => s.stream], ["sessions", (s) => s.sessions, "n"],
	["waiting", (s) => s.waiting, "n", (s) => s.waiting],
	["tokens/s", (s) => short(sum(s.samples) * s.seq_len), "n"],
	["read/s", (s) => bytes(s.rate((t) => t.read_bytes)), "n"],
	["waits/s", (s) => s.rate((t) => t.waits.le["+Inf"]).toFixed(1), "n"],
	["waited", (s) => s.waits.sum.toFixed(1) + " s", "n"],
	["reads", (s) => parts(s.samples)]];
const RUNS = [["stream", (r) => r.stream], ["run", (r) => r.run], ["mix", (r) => parts(r.mixes[0].mix)],
	["next mix", ({mixes: [, next]}) => next ? "from " + next.from + ": " + parts(next.mix) : ""]];
const SESSIONS = [["stream", (s) => s.stream], ["run", (s) => s.run],
	["rank", (s) => s.rank + " of " + s.world, "n"], ["position", (s) => s.position, "n"],
	["tokens/s", (s) => short(s.rate((t) => t.released) * s.micro * s.seq_len), "n"],
	["waited", (s) => (s.waited_ms / 1000).toFixed(1) + " s", "n"],
	["ready", (s) => s.ready + " of " + s.slots, "n"],
	["waits", (s) => (s.store_wait ? s.store_wait + ", " + duration(s.store_wait_ms) : s.ready === 0 ?
		"trainer" : s.full_ms >= 1000 ? "tokend " + duration(s.full_ms) : "") +
		(s.request ? ", request open" : ""), "", (s) => s.ready === 0]];
const STORES = [["store", (s) => s.store], ["GET/s", (s) => s.get_per_s.toFixed(1), "n"],
	["received/s", (s) => bytes(s.bytes_per_s), "n"],
	["in flight", (s) => s.in_flight + " of " + s.limit, "n"],
	["p50, p99", (s) => s.p50_ms === null ? "" : s.p50_ms.toFixed() + ", " + s.p99_ms.toFixed() + " ms", "n"],
	["retried", (s) => (100 * s.retried).toFixed(1) + " %", "n", (s) => s.retried > 0.1],
	["credentials", (s) => s.provider + (s.credentials_s === null ? "" :
		", " + duration(1000 * s.credentials_s) + " left")], ["last fault", ago]];
const FAULTS = [["time", (f) => new Date(1000 * f.time).toISOString().replace(/\.\d+/, ""), "time"],
	["level", (f) => f.level, "", (f) => f.level === "error"], ["text", (f) => f.text]];

function cache(c) {
	return "Cache " + c.dir + ": " + bytes(c.used_bytes) + " of " + bytes(c.size_bytes) + ", hit " +
		(c.hits / (c.hits + c.misses || 1)).toFixed(2) + ", evicted " + c.evictions +
		", mismatches " + c.mismatches + (c.last ? ", last: " + ago(c) : "");
}

function state(d, slow) {
	return d.version + ", up " + duration(d.uptime_ms) + ", " + d.sessions +
		(d.sessions === 1 ? " session, " : " sessions, ") + bytes(d.memory_bytes) + " of " +
		bytes(d.limit_bytes) + ", io " + d.io +
		(slow ? ", storage has not answered for " + duration(slow) : "");
}

function show(status) {
	const d = status.daemon, restarted = !last || d.uptime_ms < last.daemon.uptime_ms;
	const seconds = restarted ? 0 : (d.uptime_ms - last.daemon.uptime_ms) / 1000;
	const slow = Math.max(0, ...status.streams.map((s) => s.slow_ms));
	const list = (name, ...keys) => rated(status[name], restarted ? [] : last[name], keys, seconds);

	const datasets = list("datasets", "stream", "dataset"), streams = list("streams", "stream");
	for (const s of streams)
		s.samples = Object.fromEntries(datasets.filter((d) => d.stream === s.stream).map(
			(d) => [d.dataset, d.rate((e) => e.samples)]));
	at("state").textContent = state(d, slow);
	at("state").className = slow ? "bad" : "";
	fill("streams", STREAMS, streams);
	fill("runs", RUNS, status.runs);
	fill("sessions", SESSIONS, list("sessions", "session", "run", "rank", "peer"));
	at("more").textContent = d.sessions > status.sessions.length ?
		"and " + (d.sessions - status.sessions.length) + " more" : "";
	at("storage").hidden = status.stores.length === 0 && !status.cache;
	fill("stores", STORES, status.stores);
	at("cache").textContent = status.cache ? cache(status.cache) : "";
	fill("faults", FAULTS, status.faults);
	at("none").hidden = status.faults.length > 0;
	last = status;
}

async function turn() {
	const begin = Date.now();
	try {
		const reply = await fetch("status.json", {signal: AbortSignal.timeout(5000)});
		show(await reply.json());
		answered = begin;
	} catch (error) {
		at("state").textContent = answered ? "no answer for " + duration(begin - answered) :
			"no answer yet";
		at("state").className = "bad";
	}
	setTimeout(turn, Math.max(100, 1000 - (Date.now() - begin)));
}

turn();
