// Updates the status page every 5 seconds. Without this script the page shows the status of the time of the request.
"use strict";
const words = {
  disconnected: ["disconnected", "bad"], connecting: ["connecting", "odd"], syncing: ["fetching history", "odd"],
  connected: ["complete, live", "good"], incomplete: ["live, history incomplete", "odd"],
  healthy: ["healthy", "good"], degraded: ["degraded", "odd"], dead: ["dead", "bad"],
};
const steps = [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]];
const formatDuration = (seconds) => {
  const [length, unit] = steps.find(([length]) => seconds >= length) ?? [1, "second"];
  const count = Math.floor(seconds / length);
  return `${count} ${unit}${count === 1 ? "" : "s"}`;
};
const formatAge = (now, then) => (then == null ? "never" : `${formatDuration(Math.max(0, now - then))} ago`);
const formatBytes = (bytes) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const step = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  return step === 0 ? `${bytes} B` : `${(bytes / 2 ** (10 * step)).toFixed(1)} ${units[step]}`;
};
const cell = (label, text, kind) => {
  const td = document.createElement("td");
  td.dataset.label = label;
  td.textContent = text;
  if (kind) td.className = kind;
  return td;
};
const share = (part) => (part == null ? "" : `${(Math.floor(part * 1000) / 10).toFixed(1)} %`);
const missingText = (missing) => {
  const named = missing.slice(0, 3).map((one) => `${one.repository.split(":").slice(2).join(":")} ${one.events}`);
  const all = missing.reduce((sum, one) => sum + one.events, 0);
  return all ? `${all} (${named.join(", ")}${missing.length > named.length ? ", …" : ""})` : "";
};
const remark = (now, relay) => {
  const retry = relay.retry_at == null ? null : `next try in ${formatDuration(Math.max(0, relay.retry_at - now))}`;
  const interrupted = relay.interruptions ? `${relay.interruptions} interruptions since the last full pass` : "";
  return [relay.trouble, retry].filter(Boolean).join("; ") || relay.refusal || interrupted;
};
const row = (now, relay) => {
  const tr = document.createElement("tr");
  const [state, stateClass] = words[relay.state];
  const [health, healthClass] = words[relay.health];
  tr.append(
    cell("relay", relay.url), cell("state", state, stateClass), cell("health", health, healthClass),
    cell("synced", relay.state === "connected" ? "now" : formatAge(now, relay.synced_at)), cell("backlog", relay.backlog, "number"),
    cell("new events", relay.stored, "number"), cell("gaps", relay.gaps, "number"),
    cell("up", share(relay.uptime), "number"), cell("coverage", share(relay.coverage), "number"),
    cell("missing", missingText(relay.missing)), cell("remark", remark(now, relay)),
  );
  return tr;
};
const show = (status) => {
  const flat = { ...status, ...status.intake, ...status.purgatory };
  flat.waiting = flat.announcements + flat.states + flat.proposals;
  for (const element of document.querySelectorAll("[data-figure]")) {
    const value = flat[element.dataset.figure];
    element.textContent = element.dataset.form === "bytes" ? formatBytes(value) : Math.round(value).toLocaleString("en");
  }
  const up = status.relays.filter((relay) => ["syncing", "connected", "incomplete"].includes(relay.state));
  document.getElementById("connected").textContent = up.length;
  document.getElementById("followed").textContent = status.relays.length;
  document.getElementById("following").hidden = !status.relays.length;
  document.getElementById("uptime").textContent = formatDuration(status.now - status.started);
  const ready = document.getElementById("ready");
  const held = status.purgatory;
  const all = held.hunted + held.hunting;
  document.getElementById("hunt").hidden = held.hunting === 0;
  const progress = document.getElementById("hunt-progress");
  [progress.max, progress.value] = [Math.max(1, all), held.hunted];
  const left = held.seconds_left == null ? "" : `, ${held.per_minute} per minute, about ${formatDuration(Math.max(1, held.seconds_left))} left`;
  document.getElementById("hunt-left").textContent = `${held.hunted} of ${all}${left}`;
  const works = status.damaged.length ? ["degraded", "odd"] : ["working", "good"];
  [ready.textContent, ready.className] = status.ready ? works : ["not ready", "bad"];
  document.getElementById("damage").hidden = !status.damaged.length;
  document.getElementById("damaged").replaceChildren(...status.damaged.map((address) => {
    const li = document.createElement("li");
    li.textContent = address;
    return li;
  }));
  const relays = document.getElementById("relays");
  if (relays) relays.replaceChildren(...status.relays.map((relay) => row(status.now, relay)));
  else if (status.relays.length) location.reload();
};
const freshness = document.getElementById("freshness");
const poll = async () => {
  try {
    const answer = await fetch("status.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    show(await answer.json());
    freshness.textContent = "Updated every 5 seconds.";
  } catch {
    freshness.textContent = "The server does not respond; these figures are out of date.";
  }
};
setInterval(() => document.hidden || poll(), 5000);
poll();
