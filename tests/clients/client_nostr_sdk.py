"""nostr-sdk, the Python binding of rust-nostr, as a client of the relay; git data is pushed by the program `git`."""

import asyncio
import os
import subprocess
import sys
import time
from datetime import timedelta
from importlib.metadata import version

from nostr_sdk import Client, EventBuilder, Filter, Keys, Kind, NostrSdkError, RelayUrl, ReqTarget, Tag, Timestamp

from flow import Report, contains, equal

ADDRESS = os.environ["CLIENTS_ADDRESS"]
RELAY = RelayUrl.parse(f"ws://{ADDRESS}")
WORK = os.path.join(os.environ["CLIENTS_WORK"], "nostr-sdk")
TIMEOUT = timedelta(seconds=10)
owner, contributor = Keys.generate(), Keys.generate()
hex_key = owner.public_key().to_hex()
identifier = f"third-party-{hex_key[:8]}"
url = f"http://{ADDRESS}/{owner.public_key().to_bech32()}/{identifier}.git"
repository = ["a", f"30617:{hex_key}:{identifier}"]


def git(*args):
    author = ["-c", "user.name=alice", "-c", "user.email=alice@example.com"]
    return subprocess.run(["git", "-C", WORK, *author, *args], check=True, capture_output=True, text=True).stdout.strip()


class Session:
    def __init__(self, client):
        self.client = client

    async def send(self, keys, kind, tags, age=0, content=""):
        """Returns the event's id; raises with the message of the relay if it is refused."""
        builder = EventBuilder(Kind(kind), content).tags([Tag.parse(tag) for tag in tags])
        event = builder.custom_created_at(Timestamp.from_secs(int(time.time()) - age)).finalize(keys)
        output = await self.client.send_event(event)
        if output.failed:
            raise AssertionError("; ".join(output.failed.values()))
        return event.id()

    async def ids(self, filter):
        found = await self.client.fetch_events(ReqTarget.auto([filter]), TIMEOUT)
        return {event.id().to_hex() for event in found}

    async def announce(self):
        tags = [["d", identifier], ["clone", url], ["relays", f"ws://{ADDRESS}"]]
        self.announcement = await self.send(owner, 30617, tags, age=200)
        equal(set(), await self.ids(Filter().id(self.announcement)))

    async def sign(self):
        os.makedirs(WORK)
        git("init", "--quiet", "--initial-branch=main")
        git("commit", "--quiet", "--allow-empty", "--message=first")
        tags = [["d", identifier], ["HEAD", "ref: refs/heads/main"], ["refs/heads/main", git("rev-parse", "HEAD")]]
        self.state = await self.send(owner, 30618, tags, age=100)

    async def refused(self):
        try:
            await self.send(contributor, 1, [], content="hello")
        except AssertionError as error:
            contains(str(error), "restricted: ")
            return
        raise AssertionError("an unrelated note was accepted")

    async def served(self):
        git("push", url, "main")
        found = await self.ids(Filter().author(owner.public_key()))
        equal({self.announcement.to_hex(), self.state.to_hex()}, found)

    async def live(self):
        """Another client receives an event while its subscription is open."""
        other = Client()
        await other.add_relay(RELAY)
        await other.connect(TIMEOUT)
        notifications = other.notifications()
        await other.subscribe(ReqTarget.auto([Filter().kind(Kind(1621)).limit(0)]))

        async def wait_for(is_wanted):
            while True:
                notification = await asyncio.wait_for(notifications.next(), TIMEOUT.total_seconds())
                if is_wanted(notification):
                    return notification

        await wait_for(lambda it: it.is_message() and it.message.as_json().startswith('["EOSE"'))
        issue = await self.send(contributor, 1621, [repository, ["subject", "live"]], content="an issue")
        notification = await wait_for(lambda it: it.is_new_event())
        equal(issue.to_hex(), notification.event.id().to_hex())
        await other.shutdown()

    async def count(self):
        relay, own = await self.client.relay(RELAY), Filter().author(owner.public_key())
        for is_last in (False, False, True):
            try:
                equal(2, await relay.count_events(own, timedelta(seconds=3)))
                return
            except NostrSdkError:
                # Once in a hundred times the answer comes before nostr-sdk listens for it.
                if is_last:
                    raise

    async def negentropy(self):
        output = await self.client.sync(Filter().author(owner.public_key()))
        equal({}, output.failed)
        equal(2, len(output.report.received))

    async def propose(self):
        git("commit", "--quiet", "--allow-empty", "--message=proposal")
        tags = [repository, ["p", hex_key], ["c", git("rev-parse", "HEAD")], ["clone", url]]
        event = await self.send(contributor, 1618, tags)
        equal(set(), await self.ids(Filter().id(event)))
        git("push", url, f"HEAD:refs/nostr/{event.to_hex()}")
        equal({event.to_hex()}, await self.ids(Filter().id(event)))

    async def delete(self):
        note = await self.send(contributor, 1111, [repository, ["K", "30617"]], content="a comment")
        await self.send(contributor, 5, [["e", note.to_hex()]])
        equal(set(), await self.ids(Filter().id(note)))


def main():
    loop, report = asyncio.new_event_loop(), Report(f"nostr-sdk {version('nostr-sdk')}")
    wait = loop.run_until_complete
    client = Client()
    wait(client.add_relay(RELAY))
    wait(client.connect(TIMEOUT))
    session = Session(client)
    steps = {
        "announce": session.announce,
        "sign": session.sign,
        "refused event": session.refused,
        "push, then query": session.served,
        "live subscription": session.live,
        "count": session.count,
        "negentropy": session.negentropy,
        "pull request": session.propose,
        "deletion": session.delete,
    }
    for operation, work in steps.items():
        report.run(operation, lambda: wait(work()))
    wait(client.shutdown())
    sys.exit(1 if report.failed else 0)


main()
