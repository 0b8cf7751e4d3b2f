"""Events by pynostr (coincurve, tornado)."""

from pynostr.event import Event
from pynostr.filters import Filters, FiltersList
from pynostr.key import PrivateKey
from pynostr.relay_manager import RelayManager


class Events:
    def __init__(self, relay):
        self.relay, self.key = relay, PrivateKey()
        self.npub, self.hex = self.key.public_key.npub, self.key.public_key.hex()

    def sign(self, kind, tags, created_at):
        event = Event(content="", pubkey=self.hex, kind=kind, tags=tags, created_at=created_at)
        event.sign(self.key.hex())
        return event

    def publish(self, event):
        """Returns whether the event was accepted, the message, and its id."""
        pool = self._exchange(event.id, event)
        if not pool.has_ok_notices():
            raise AssertionError("the relay sent no OK")
        answer = pool.get_ok_notice()
        return answer.ok, answer.message, event.id

    def send(self, kind, tags, created_at):
        return self.publish(self.sign(kind, tags, created_at))

    def has(self, event):
        return self._exchange(event).has_events()

    def _exchange(self, subject, event=None):
        """Publishes an event, if any, and requests the subject; the connection ends with EOSE."""
        manager = RelayManager(timeout=10)
        manager.add_relay(self.relay)
        if event is not None:
            manager.publish_event(event)
        manager.add_subscription_on_all_relays("it", FiltersList([Filters(ids=[subject])]))
        manager.run_sync()
        if not manager.message_pool.has_eose_notices():
            raise AssertionError("the relay sent no EOSE")
        return manager.message_pool
