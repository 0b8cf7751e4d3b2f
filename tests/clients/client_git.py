"""The git program that the first argument names; events by pynostr."""

import os
import subprocess
import sys
import time

from events_pynostr import Events
from flow import MAIN, Flow, equal

GIT = sys.argv[1]
WITHOUT_CONFIGURATION = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_AUTHOR_NAME": "alice",
    "GIT_AUTHOR_EMAIL": "alice@example.com",
    "GIT_COMMITTER_NAME": "alice",
    "GIT_COMMITTER_EMAIL": "alice@example.com",
}


def git(*args, data=None, at=None):
    at = ["-C", str(at)] if at else []
    command = [GIT, *at, *map(str, args)]
    done = subprocess.run(command, input=data, capture_output=True, env=os.environ | WITHOUT_CONFIGURATION)
    if done.returncode != 0:
        raise AssertionError(f"git {args[0]}: {done.stderr.decode()}")
    return done.stdout.decode().strip()


class Client:
    def create(self, path):
        git("init", "--quiet", "--initial-branch=main", path)

    def commit(self, path, branch, files):
        committer = b"committer alice <alice@example.com> 1700000000 +0000"
        lines = [b"commit refs/heads/" + branch.encode(), committer, b"data 1", b"x"]
        if git("for-each-ref", MAIN, at=path):
            lines.append(b"from refs/heads/main^0")
        for name, data in files.items():
            lines += [b"M 644 inline " + name.encode(), b"data %d" % len(data), data]
        git("fast-import", "--quiet", "--force", at=path, data=b"\n".join(lines) + b"\n")
        return git("rev-parse", branch, at=path)

    def push(self, path, url, *refspecs):
        git("push", url, *refspecs, at=path)

    def clone(self, url, path, depth=None):
        git("clone", "--quiet", *([f"--depth={depth}"] if depth else []), url, path)
        return git("rev-parse", "HEAD", at=path)

    def fetch(self, path, url, ref):
        git("fetch", "--quiet", url, f"+{ref}:refs/fetched", at=path)
        return git("rev-parse", "refs/fetched", at=path)


def run_git_operations(flow):
    """Runs the operations that only git supports."""
    def protocol(version):
        path = flow.work / f"v{version}"
        git("-c", f"protocol.version={version}", "clone", "--quiet", flow.url, path)
        equal(flow.first, git("rev-parse", "HEAD", at=path))
        git("fsck", "--strict", at=path)

    def deepen(version):
        path = flow.work / f"deepen-v{version}"
        v = ["-c", f"protocol.version={version}"]
        git(*v, "clone", "--quiet", "--depth=1", "--branch=long", flow.url, path)
        equal("1", git("rev-list", "--count", "HEAD", at=path))
        git(*v, "fetch", "--quiet", "--deepen=1", at=path)
        equal("2", git("rev-list", "--count", "HEAD", at=path))
        git(*v, "fetch", "--quiet", "--unshallow", at=path)
        equal("3", git("rev-list", "--count", "HEAD", at=path))

    def partial():
        path = flow.work / "partial"
        git("clone", "--quiet", "--filter=blob:none", "--no-checkout", flow.url, path)
        missing = git("rev-list", "--objects", "--all", "--missing=print", at=path)
        equal(True, any(line.startswith("?") for line in missing.splitlines()))
        git("checkout", "--quiet", "main", at=path)  # fetches the missing objects by id
        equal("# hello\n", (path / "README.md").read_text())

    def history():
        git("branch", "--quiet", "--force", "long", MAIN, at=flow.own)
        tip = flow.first
        for _ in range(2):
            tip = git("commit-tree", "-p", tip, "-m", "more", f"{flow.first}^{{tree}}", at=flow.own)
        git("update-ref", "refs/heads/long", tip, at=flow.own)
        flow.sign(main=flow.first, long=tip)
        git("push", "--atomic", flow.url, f"+{flow.first}:{MAIN}", "long", at=flow.own)

    def data_first():
        """Pushes the tip of a pull request before its event, which is then served at once."""
        tip = flow.client.commit(flow.copy, "early", {"CHANGES": b"another proposal\n"})
        tags = [["a", f"30617:{flow.owner.hex}:{flow.identifier}"], ["c", tip], ["clone", flow.url]]
        event = flow.contributor.sign(1618, tags, int(time.time()))
        git("push", flow.url, f"early:refs/nostr/{event.id}", at=flow.copy)
        equal((True, "", event.id), flow.contributor.publish(event))
        equal(tip, flow.client.fetch(flow.own, flow.url, f"refs/nostr/{event.id}"))

    def annotated_tag():
        git("tag", "--annotate", "--message=one", "v1", flow.first, at=flow.own)
        flow.sign(**{"refs/tags/v1": git("rev-parse", "v1", at=flow.own)})
        git("push", "--push-option=ci.skip", flow.url, "v1", at=flow.own)
        path = flow.work / "mirror"
        git("clone", "--quiet", "--mirror", flow.url, path)
        equal("tag", git("cat-file", "-t", "refs/tags/v1", at=path))

    def from_shallow():
        """Pushes from a shallow clone; the server has the history that the clone lacks."""
        path = flow.work / "from-shallow"
        git("clone", "--quiet", "--depth=1", "--branch=long", flow.url, path)
        git("commit", "--quiet", "--allow-empty", "--message=shallow", at=path)
        tip = git("rev-parse", "HEAD", at=path)
        tags = [["a", f"30617:{flow.owner.hex}:{flow.identifier}"], ["c", tip], ["clone", flow.url]]
        event = flow.contributor.sign(1618, tags, int(time.time()))
        git("push", "origin", f"HEAD:refs/nostr/{event.id}", at=path)
        equal((True, "", event.id), flow.contributor.publish(event))
        equal(tip, flow.client.fetch(flow.own, flow.url, f"refs/nostr/{event.id}"))
        equal("4", git("rev-list", "--count", tip, at=flow.own))

    run = flow.report.run
    run("atomic push of two branches", history)
    for version in (0, 1, 2):
        run(f"clone by protocol v{version}", lambda: protocol(version))
    for version in (0, 2):
        run(f"depth, deepen, unshallow by v{version}", lambda: deepen(version))
    run("partial clone and its missing objects", partial)
    run("annotated tag, mirror", annotated_tag)
    run("pull request, git data first", data_first)
    run("push from a shallow clone", from_shallow)


flow = Flow(git("--version").replace("git version", "git"), Client(), Events)
flow.run()
if not flow.report.failed:
    run_git_operations(flow)
sys.exit(1 if flow.report.failed else 0)
