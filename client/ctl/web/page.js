// The page of tokctl serve: fetches status.json each second. It has no other source, sends
// nothing, and keeps what it draws over time only while it is open.
"use strict";

const SECONDS = 120, SVG = "http://www.w3.org/2000/svg";
const COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999933",
	"#882255", "#44aa99", "#bbbbbb"];
const history = new Map(); // stream → {rates: [tokens/s], shares: [{dataset: samples}]}
let last = null, answered = 0;

const at = (id) => document.getElementById(id);

function make(tag, text, kind) {
	const element = document.createElement(tag);
	element.textContent = text;
	if (kind)
		element.className = kind;
	return element;
}

function draw(tag, attributes) {
	const element = document.createElementNS(SVG, tag);
	for (const [name, value] of Object.entries(attributes))
		element.setAttribute(name, value);
	return element;
}

function short(value) {
	let unit = 0;
	for (; value >= 999.5 && unit < 5; unit++)
		value /= 1000;
	return unit ? value.toPrecision(3) + " " + "kMGTP"[unit - 1] : String(Math.round(value));
}

function bytes(value) {
	const text = short(value);
	return text + (text.includes(" ") ? "B" : " B");
}

function duration(ms) {
	const s = Math.floor(ms / 1000);
	return s < 120 ? s + " s" : s < 7200 ? Math.floor(s / 60) + " min" : s < 172800 ?
		Math.floor(s / 3600) + " h" : Math.floor(s / 86400) + " days";
}

// Per second since the answer before. 0 after a restart: counters begin anew.
function rate(now, before, seconds) {
	return before === undefined || now < before || seconds <= 0 ? 0 : (now - before) / seconds;
}

function row(cells) {
	const tr = document.createElement("tr");
	for (const [content, kind] of cells) {
		const td = make("td", "", kind);
		td.append(content);
		tr.append(td);
	}
	return tr;
}

function fill(id, rows) {
	at(id).tBodies[0].replaceChildren(...rows);
}

function sparkline(values) {
	const svg = draw("svg", {viewBox: "0 0 " + SECONDS + " 20", preserveAspectRatio: "none"});
	const most = Math.max(...values, 1e-9), from = SECONDS - values.length;
	const points = values.map((v, i) => (from + i) + "," + (19 - 18 * v / most).toFixed(1));
	svg.append(draw("polyline", {points: points.join(" ")}));
	return svg;
}

// ---- streams ----

function samples(datasets, stream) {
	const of = {};
	for (const d of datasets)
		if (d.stream === stream)
			of[d.dataset] = d.samples;
	return of;
}

function remember(stream, status, before, seconds) {
	const h = history.get(stream.stream) || {rates: [], shares: []}, share = {};
	const now = samples(status.datasets, stream.stream);
	const then = samples(before.datasets, stream.stream);
	let sum = 0;
	for (const name of Object.keys(now)) {
		share[name] = rate(now[name], then[name], seconds);
		sum += share[name];
	}
	h.rates.push(sum * stream.seq_len);
	h.shares.push(share);
	if (h.rates.length > SECONDS) {
		h.rates.shift();
		h.shares.shift();
	}
	history.set(stream.stream, h);
	return h;
}

function streamRow(stream, status, before, seconds) {
	const h = remember(stream, status, before, seconds);
	const b = find(before.streams, stream, ["stream"]) || {};
	const waits = (s) => s.waits && s.waits.le["+Inf"];
	return row([[stream.stream], [String(stream.sessions), "n"],
		[String(stream.waiting), stream.waiting ? "n bad" : "n"],
		[short(h.rates[h.rates.length - 1]), "n"],
		[bytes(rate(stream.read_bytes, b.read_bytes, seconds)), "n"],
		[rate(waits(stream), waits(b), seconds).toFixed(1), "n"],
		[stream.waits.sum.toFixed(1) + " s", "n"], [sparkline(h.rates)]]);
}

// ---- mixes ----

function percent(share) {
	return (100 * share).toPrecision(3).replace(/\.?0+$/, "") + " %";
}

function mixText(mix) {
	return Object.entries(mix).map(([name, share]) => name + " " + percent(share)).join(", ");
}

function runRow(run) {
	const [now, next] = run.mixes;
	return row([[run.stream], [run.run], [mixText(now.mix)],
		[next ? "from " + next.from + ": " + mixText(next.mix) : ""]]);
}

// What was read in each second, as areas of the datasets' shares.
function mixChart(stream) {
	const h = history.get(stream.stream);
	const names = Object.keys(h.shares[h.shares.length - 1]);
	const svg = draw("svg", {viewBox: "0 0 " + SECONDS + " 100", preserveAspectRatio: "none"});
	const figure = document.createElement("figure"), caption = make("figcaption", stream.stream);
	const sums = h.shares.map((s) => names.reduce((sum, name) => sum + (s[name] || 0), 0));
	const from = SECONDS - h.shares.length, below = h.shares.map(() => 0);
	names.forEach((name, i) => {
		const colour = COLOURS[Math.min(i, COLOURS.length - 1)], bars = [];
		h.shares.forEach((s, x) => {
			const height = sums[x] ? 100 * (s[name] || 0) / sums[x] : 0;
			if (height > 0)
				bars.push("M" + (from + x) + " " + (100 - below[x]).toFixed(1) +
					"v-" + height.toFixed(1) + "h1v" + height.toFixed(1) + "z");
			below[x] += height;
		});
		svg.append(draw("path", {d: bars.join(""), fill: colour, "data-dataset": name}));
		const key = document.createElement("i");
		key.style.background = colour;
		const sum = sums[sums.length - 1], own = h.shares[h.shares.length - 1][name] || 0;
		caption.append(key, name + (sum ? " " + percent(own / sum) : ""));
	});
	figure.append(caption, svg);
	return figure;
}

// ---- sessions and faults ----

function sessionRow(s, before, seconds) {
	const meter = document.createElement("meter");
	meter.max = s.slots;
	meter.value = s.ready;
	const cell = document.createElement("span");
	cell.append(meter, " " + s.ready + " of " + s.slots);
	const tokens = rate(s.released, before && before.released, seconds) * s.micro * s.seq_len;
	const waits = s.store_wait ? s.store_wait + ", " + duration(s.store_wait_ms) :
		s.ready === 0 ? "trainer" : s.full_ms ? "tokend " + duration(s.full_ms) : "";
	return row([[s.stream], [s.run], [s.rank + " of " + s.world, "n"], [String(s.position), "n"],
		[short(tokens), "n"], [(s.waited_ms / 1000).toFixed(1) + " s", "n"], [cell],
		[waits + (s.request ? ", request open" : ""), s.ready === 0 ? "bad" : ""]]);
}

// ---- stores ----

function ago(of) {
	return of.last ? of.last + ", " + duration(1000 * of.last_ago_s) + " ago" : "";
}

function storeRow(s) {
	const left = s.credentials_s === null ? "" : ", " + duration(1000 * s.credentials_s) + " left";
	return row([[s.store], [s.get_per_s.toFixed(1), "n"], [bytes(s.bytes_per_s), "n"],
		[s.in_flight + " of " + s.limit, "n"],
		[s.p50_ms === null ? "" : Math.round(s.p50_ms) + ", " + Math.round(s.p99_ms) + " ms", "n"],
		[(100 * s.retried).toFixed(1) + " %", s.retried > 0.1 ? "n bad" : "n"],
		[s.provider ? s.provider + left : ""], [ago(s)]]);
}

function cacheText(c) {
	const pieces = c.hits + c.misses;
	return "Cache " + c.dir + ": " + bytes(c.used_bytes) + " of " + bytes(c.size_bytes) + ", hit " +
		(pieces ? c.hits / pieces : 0).toFixed(2) + ", evicted " + c.evictions + ", mismatches " +
		c.mismatches + (c.last ? ", last: " + ago(c) : "");
}

function faultRow(f) {
	return row([[new Date(1000 * f.time).toISOString().replace(/\.\d+/, "")],
		[f.level, f.level === "error" ? "bad" : ""], [f.text]]);
}

// ---- the whole page ----

function find(list, item, keys) {
	return list.find((other) => keys.every((key) => other[key] === item[key]));
}

function show(status, time) {
	const d = status.daemon;
	const restarted = !last || d.uptime_ms < last.status.daemon.uptime_ms;
	const before = restarted ? {streams: [], datasets: [], sessions: []} : last.status;
	const seconds = restarted ? 0 : (d.uptime_ms - last.status.daemon.uptime_ms) / 1000;

	at("state").textContent = d.version + ", up " + duration(d.uptime_ms) + ", " + d.sessions +
		(d.sessions === 1 ? " session, " : " sessions, ") + bytes(d.memory_bytes) + " of " +
		bytes(d.limit_bytes) + ", io " + d.io +
		(d.slow_ms ? ", storage has not answered for " + duration(d.slow_ms) : "");
	at("state").className = d.slow_ms ? "bad" : "";
	fill("streams", status.streams.map((s) => streamRow(s, status, before, seconds)));
	fill("runs", status.runs.map(runRow));
	at("mixes").replaceChildren(...status.streams.filter((s) => s.sessions).map(mixChart));
	fill("sessions", status.sessions.map((s) =>
		sessionRow(s, find(before.sessions, s, ["session", "run", "rank", "peer"]), seconds)));
	at("more").textContent = d.sessions > status.sessions.length ?
		"and " + (d.sessions - status.sessions.length) + " more" : "";
	at("storage").hidden = status.stores.length === 0 && !status.cache;
	fill("stores", status.stores.map(storeRow));
	at("cache").textContent = status.cache ? cacheText(status.cache) : "";
	fill("faults", status.faults.map(faultRow));
	at("none").hidden = status.faults.length > 0;
	last = {status, time};
}

async function turn() {
	const begin = Date.now();
	try {
		const reply = await fetch("status.json", {signal: AbortSignal.timeout(5000)});
		show(await reply.json(), begin);
		answered = begin;
	} catch (error) {
		at("state").textContent = answered ? "no answer for " + duration(begin - answered) :
			"no answer yet";
		at("state").className = "bad";
	}
	setTimeout(turn, Math.max(100, 1000 - (Date.now() - begin)));
}

turn();
