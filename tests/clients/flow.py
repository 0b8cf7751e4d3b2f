"""The operations of each git client in Python, each of which prints a line.

A client has these methods, on paths and URLs: `create(path)`, `commit(path, branch, files) -> oid`,
`push(path, url, *refspecs)`, which raises with the server's message, `clone(url, path, depth=None) -> oid of HEAD`,
`fetch(path, url, ref) -> oid`.
"""

import os
import random
import sys
import time
import traceback
from pathlib import Path

MAIN = "refs/heads/main"
TOPIC = "refs/heads/topic"
UNSIGNED = "refs/heads/unsigned"


class Report:
    def __init__(self, name):
        self.name, self.failed = name, False

    def run(self, operation, work):
        """Prints `ok`, or the error of the operation; returns whether it succeeded."""
        try:
            work()
        except Exception as error:  # clients raise exceptions of any type
            self.failed = True
            text = " ".join(str(error).split()) or type(error).__name__
            print(f"{self.name}: {operation}: FAILED: {text}", flush=True)
            if os.environ.get("CLIENTS_TRACE"):
                traceback.print_exc()
            return False
        print(f"{self.name}: {operation}: ok", flush=True)
        return True


def equal(wanted, found):
    if wanted != found:
        raise AssertionError(f"expected {wanted!r}, found {found!r}")


def contains(text, part):
    if part not in text:
        raise AssertionError(f"expected {part!r} in {text!r}")


class Flow:
    def __init__(self, name, client, events):
        address = os.environ["CLIENTS_ADDRESS"]
        self.client, self.report = client, Report(name)
        self.relay, self.http = f"ws://{address}", f"http://{address}"
        self.work = Path(os.environ["CLIENTS_WORK"], name.replace(" ", "-"))
        self.work.mkdir(parents=True)
        self.own, self.copy = self.work / "own", self.work / "copy"
        self.owner, self.contributor = events(self.relay), events(self.relay)
        self.identifier = "third-party-" + self.owner.hex[:8]
        self.url = f"{self.http}/{self.owner.npub}/{self.identifier}.git"
        self.signed_at = int(time.time()) - 100
        self.refs = {}
        self.state = None

    def announce(self):
        tags = [["d", self.identifier], ["name", "third-party clients"], ["clone", self.url], ["relays", self.relay]]
        accepted, message, self.announcement = self.owner.send(30617, tags, int(time.time()) - 200)
        contains(message, "purgatory: ")
        equal((True, False), (accepted, self.owner.has(self.announcement)))

    def sign(self, **refs):
        """Signs a state with these refs, branches by their short names; `None` removes one."""
        for name, oid in refs.items():
            self.refs[name] = oid
            if oid is None:
                del self.refs[name]
        self.signed_at += 1  # the newer of two states wins, in seconds
        tags = [["d", self.identifier], ["HEAD", f"ref: {MAIN}"]]
        full = lambda name: name if name.startswith("refs/") else f"refs/heads/{name}"
        tags += [[full(name), oid] for name, oid in self.refs.items()]
        accepted, message, self.state = self.owner.send(30618, tags, self.signed_at)
        return accepted, message

    def sign_first(self):
        self.client.create(self.own)
        random_bytes = random.Random(7).randbytes(3_000_000)  # more than git sends in one piece
        self.first = self.client.commit(self.own, "main", {"README.md": b"# hello\n", "random": random_bytes})
        accepted, message = self.sign(main=self.first)
        equal(True, accepted)
        contains(message, "purgatory: ")

    def refuse(self):
        self.unsigned = self.client.commit(self.own, "unsigned", {"README.md": b"not signed\n"})
        try:
            self.client.push(self.own, self.url, f"{UNSIGNED}:{UNSIGNED}")
        except Exception as error:
            contains(str(error), "is not in the signed state")
            return
        raise AssertionError("a push without a signed state was accepted")

    def push(self):
        self.client.push(self.own, self.url, f"{MAIN}:{MAIN}")
        equal((True, True), (self.owner.has(self.announcement), self.owner.has(self.state)))

    def clone(self):
        equal(self.first, self.client.clone(self.url, self.copy))
        equal("# hello\n", (self.copy / "README.md").read_text())

    def fetch(self):
        self.second = self.client.commit(self.own, "main", {"README.md": b"# hello again\n"})
        self.sign(main=self.second)
        self.client.push(self.own, self.url, f"{MAIN}:{MAIN}")
        equal(self.second, self.client.fetch(self.copy, self.url, MAIN))

    def shallow(self):
        equal(self.second, self.client.clone(self.url, self.work / "shallow", depth=1))

    def branch(self):
        topic = self.client.commit(self.own, "topic", {"topic": b"a branch\n"})
        self.sign(topic=topic)
        self.client.push(self.own, self.url, f"{TOPIC}:{TOPIC}")
        equal(topic, self.client.fetch(self.copy, self.url, TOPIC))

    def delete(self):
        """A push has to contain all changes of a state: the deletion and the commit together."""
        third = self.client.commit(self.own, "main", {"README.md": b"# hello, third\n"})
        self.sign(main=third, topic=None)
        self.client.push(self.own, self.url, f"{MAIN}:{MAIN}", f":{TOPIC}")
        equal((third, True), (self.client.fetch(self.copy, self.url, MAIN), self.owner.has(self.state)))

    def rewrite(self):
        self.sign(main=self.unsigned)
        self.client.push(self.own, self.url, f"+{UNSIGNED}:{MAIN}")
        equal(self.unsigned, self.client.fetch(self.copy, self.url, MAIN))

    def propose(self):
        tip = self.client.commit(self.copy, "proposal", {"CHANGES": b"a proposal\n"})
        tags = [["a", f"30617:{self.owner.hex}:{self.identifier}"], ["p", self.owner.hex], ["subject", "a proposal"]]
        tags += [["c", tip], ["clone", self.url], ["branch-name", "proposal"]]
        accepted, message, event = self.contributor.send(1618, tags, int(time.time()))
        equal((True, False), (accepted, self.contributor.has(event)))
        contains(message, "purgatory: ")
        ref = f"refs/nostr/{event}"
        self.client.push(self.copy, self.url, f"refs/heads/proposal:{ref}")
        equal(True, self.owner.has(event))
        equal(tip, self.client.fetch(self.own, self.url, ref))

    def run(self):
        steps = [("announce", self.announce), ("sign", self.sign_first), ("refused push", self.refuse)]
        steps += [("push", self.push), ("clone", self.clone), ("fetch", self.fetch), ("shallow clone", self.shallow)]
        steps += [("branch", self.branch), ("deletion", self.delete), ("forced push", self.rewrite)]
        steps += [("pull request", self.propose)]
        for operation, work in steps:
            needed = operation in ("announce", "sign", "push", "clone")
            if not self.report.run(operation, work) and needed:
                break
        return self.report

    def exit(self):
        sys.exit(1 if self.run().failed else 0)
