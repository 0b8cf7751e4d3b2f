// Administration by key (NIP-86). A browser extension (NIP-07) signs in once, and signs each change; the session's token is
// kept by this page only. Texts of strangers become text nodes, never HTML.
"use strict";
const url = new URL("./", location.href).href;
const note = document.getElementById("note"), tabs = document.getElementById("tabs");
const asked = document.getElementById("asked"), view = document.getElementById("view");
const signIn = document.getElementById("signin");
let token = "", methods = [], current = "Overview";

const el = (name, attributes, ...children) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value !== false) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
};
const say = (text, isBad) => {
  note.textContent = text;
  note.className = isBad ? "bad" : "small";
};
const attempt = (work) => async (...given) => {
  try {
    await work(...given);
  } catch (error) {
    say(error.message, true);
  }
};

const authorize = async (body) => {
  const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(body));
  const payload = [...new Uint8Array(hash)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const tags = [["u", url], ["method", "POST"], ["payload", payload]];
  const event = { kind: 27235, created_at: Math.floor(Date.now() / 1000), tags, content: "" };
  const signed = JSON.stringify(await window.nostr.signEvent(event));
  return "Nostr " + btoa(String.fromCharCode(...new TextEncoder().encode(signed)));
};
const call = async (authorization, body) => {
  const headers = { "Content-Type": "application/nostr+json+rpc", Authorization: authorization };
  const answer = await fetch(url, { method: "POST", headers, body, cache: "no-store", credentials: "omit" });
  const said = await answer.json();
  if (answer.status === 401 && authorization.startsWith("Bearer")) signIn.hidden = false;
  if (said.error) throw new Error(said.error);
  return said.result;
};
const sign = async (method, params) => {
  const body = JSON.stringify({ method, params });
  return call(await authorize(body), body);
};
const read = (method, ...params) => call("Bearer " + token, JSON.stringify({ method, params }));
const may = (method) => methods.includes(method);

// Says what a change does, and makes it once that is confirmed.
const change = attempt(async (title, method, params) => {
  const preview = await read("grasp.preview", method, params);
  const confirm = attempt(async () => {
    asked.replaceChildren();
    say("Waiting for the signature …");
    await sign(method, params);
    await show(current);
    say(title + ": done.");
  });
  const yes = el("button", { type: "button", id: "confirm", click: confirm }, "Confirm and sign");
  const no = el("button", { type: "button", class: "quiet", click: () => asked.replaceChildren() }, "Cancel");
  asked.replaceChildren(
    el("div", { class: "box", role: "group", "aria-label": "Confirmation" }, el("p", {}, el("strong", {}, title), ": " + preview.text), el("p", { class: "filters" }, yes, no)),
  );
  yes.focus();
});
const button = (label, title, method, params) =>
  may(method) ? el("button", { type: "button", "data-method": method, click: () => change(title, method, params) }, label) : "";

// A form whose fields are the parameters of a method.
const form = (title, method, ...labels) => {
  if (!may(method)) return "";
  const inputs = labels.map((label, at) => el("input", { type: "text", name: "p" + at, "aria-label": label, placeholder: label }));
  const submit = (event) => {
    event.preventDefault();
    change(title, method, inputs.map((input) => input.value.trim()).filter((text, at) => text || at === 0));
  };
  return el("form", { class: "search", "data-method": method, submit }, ...inputs, el("button", {}, title));
};
const table = (caption, heads, rows) => {
  if (!rows.length) return el("p", {}, caption + ": none.");
  const head = el("tr", {}, ...heads.map((text) => el("th", { scope: "col" }, text)));
  const cells = (row) => row.map((cell, at) => el("td", { "data-label": heads[at] }, cell ?? ""));
  const body = el("tbody", {}, ...rows.map((row) => el("tr", {}, ...cells(row))));
  return el("div", { class: "wide" }, el("table", {}, el("caption", {}, caption), el("thead", {}, head), body));
};
const heading = (text) => el("h2", {}, text);
const short = (text) => (text && text.length > 20 ? text.slice(0, 12) + "…" : text || "");
const time = (seconds) => (seconds ? new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ") : "");
const bytes = (count) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; count >= 1024 && at < 4; at++) count /= 1024;
  return (at ? count.toFixed(1) : count) + " " + units[at];
};
const figure = (label, value) => el("div", {}, el("dt", {}, label), el("dd", {}, String(value)));
const repoName = (repo) => repo.split(":").slice(2).join(":");
const owner = (repo) => repo.split(":")[1];
const entries = (caption, rows, key, title, method) =>
  table(caption, ["Who or what", "Reason", "Since", "By", "Change"], rows.map((row) =>
    [row[key], row.reason, time(row.since), short(row.by), row.fixed ? "" : button(title, title + " " + short(row[key]), method, [row[key]])]));

const screens = {
  Overview: async () => {
    const status = await read("grasp.status");
    const held = await read("grasp.listheld");
    return [
      el("dl", { class: "figures" }, figure("State", status.ready ? "working" : "not ready"), figure("Version", status.version),
        figure("Repositories", status.repositories), figure("Held", held.length), figure("Events", status.events),
        figure("Git data", bytes(status.git_bytes)), figure("On disk", bytes(status.disk_bytes)),
        figure("Waiting", status.purgatory.hunting)),
      table("Held repositories", ["Name", "Owner", "Reason", "Until", "Change"], held.map((row) =>
        [repoName(row.repo), short(owner(row.repo)), row.reason, time(row.until), button("Restore", "Restore " + repoName(row.repo), "grasp.restorerepo", [row.repo])])),
      heading("Presentation"),
      form("Change the name", "changerelayname", "Name"),
      form("Change the description", "changerelaydescription", "Description"),
    ];
  },
  Repositories: async (query) => {
    const page = await read("grasp.listrepos", query ? { query } : {});
    const input = el("input", { type: "search", name: "q", "aria-label": "Name or owner", value: query ?? "" });
    const submit = (event) => {
      event.preventDefault();
      show("Repositories", input.value.trim());
    };
    const buttons = (row) => {
      const name = repoName(row.repo);
      const hold = row.state === "held" ? ["Restore", "Restore " + name, "grasp.restorerepo"] : ["Hold", "Hold " + name, "grasp.holdrepo"];
      return el("span", { class: "filters" }, button(...hold, [row.repo]), button("Ban", "Ban " + name, "grasp.banrepo", [row.repo]));
    };
    return [
      el("form", { class: "search", role: "search", submit }, input, el("button", {}, "Search")),
      table("Repositories, those with most git data first", ["Name", "Owner", "Git data", "State", "Change"], page.repos.map((row) =>
        [row.name, short(owner(row.repo)), bytes(row.bytes), row.state, buttons(row)])),
      page.next ? el("p", { class: "small" }, "There are more; search for the others.") : "",
    ];
  },
  People: async () => {
    const [banned, repos, allowed, roles, usage] = await Promise.all(
      ["listbannedpubkeys", "grasp.listbannedrepos", "listallowedpubkeys", "grasp.listroles", "grasp.getusage"].map((method) => read(method)));
    const members = roles.flatMap((role) => role.members.map((key) =>
      [key, role.label || role.id, button("Take", "Take " + role.id + " from " + short(key), "unassignrole", [key, role.id])]));
    return [
      heading("Bans"),
      form("Ban an author", "banpubkey", "Key in hex or npub", "Reason"),
      form("Ban a repository", "grasp.banrepo", "NPUB/NAME or name", "Reason"),
      entries("Banned authors", banned, "pubkey", "Unban", "unbanpubkey"),
      entries("Banned repositories and names", repos, "repo", "Unban", "grasp.unbanrepo"),
      heading("Allowed"),
      form("Allow an owner", "allowpubkey", "Key in hex or npub", "Reason"),
      entries("Allowed owners", allowed, "pubkey", "Remove", "unallowpubkey"),
      heading("Roles"),
      form("Give a role", "assignrole", "Key in hex or npub", "observer, moderator or admin"),
      table("Keys with roles", ["Key", "Role", "Change"], members),
      heading("Git data"),
      table("Owners", ["Owner", "Used", "Quota", "Repositories"], usage.rows.map((row) => [row.owner, bytes(row.bytes), bytes(row.quota), String(row.repositories)])),
    ];
  },
  Network: async () => {
    const [blocked, status] = await Promise.all([read("listblockedips"), read("grasp.status")]);
    return [
      form("Block a network", "blockip", "Address or network", "Reason"),
      entries("Blocked networks", blocked, "ip", "Unblock", "unblockip"),
      table("Relays", ["Address", "State"], status.relays.map((row) => [row.url, String(row.state)])),
    ];
  },
  Audit: async () => {
    const rows = await read("grasp.listaudit", {});
    return [table("Changes and refused calls, newest first", ["Call", "Time", "By", "Result"], rows.map((row) =>
      [row.method + " " + JSON.stringify(row.params), time(row.at), short(row.actor), row.error ?? "done"]))];
  },
};

const show = attempt(async (name, ...given) => {
  current = name;
  for (const tab of tabs.children) {
    if (tab.textContent === name) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  view.replaceChildren(...(await screens[name](...given)));
  view.dataset.screen = name;
});

signIn.addEventListener("click", attempt(async () => {
  if (!window.nostr) throw new Error("There is no signer: install an extension that signs for nostr (NIP-07).");
  if (!window.crypto?.subtle) throw new Error("Open this page by https: the browser computes no hashes otherwise.");
  token = (await sign("grasp.session", [])).token;
  const me = await read("grasp.whoami");
  methods = me.methods;
  if (!may("grasp.status")) throw new Error("This key has no role at this server.");
  signIn.hidden = true;
  say("Signed in as " + short(me.pubkey) + " (" + me.roles.join(", ") + ").");
  const link = (name) => el("a", { href: "#" + name, click: (event) => { event.preventDefault(); show(name); } }, name);
  tabs.replaceChildren(...Object.keys(screens).map(link));
  tabs.hidden = false;
  await show(current);
}));
signIn.hidden = false;
