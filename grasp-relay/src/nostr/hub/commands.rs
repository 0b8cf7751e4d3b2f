//! The queue of the hub's commands.
//!
//! A command that only matters to the events that are published after it does not wake the hub, which handles it before
//! the next command that does: clients that ask and ask again then cost no switch of tasks for each REQ. All commands are
//! handled in the order in which they were queued.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::Command;

/// Commands that may be queued for the hub before senders wait.
const CAPACITY: usize = 4_096;

/// Commands that are handled before other tasks get their turn.
const MAX_AT_ONCE: usize = 64;

/// Commands after which the hub is woken in any case, so that what they hold is not kept for long.
const MAX_ASLEEP: usize = 64;

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    /// Wakes the hub.
    arrived: Notify,
    /// Wakes the senders that wait because the queue was full.
    drained: Notify,
}

#[derive(Debug, Default)]
struct State {
    commands: VecDeque<Command>,
    /// No sender is left.
    is_closed: bool,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The senders' end of the queue. The hub ends after it was dropped.
#[derive(Debug)]
pub(super) struct CommandSender(Arc<Queue>);

/// The hub's end of the queue.
#[derive(Debug)]
pub(super) struct CommandReceiver(Arc<Queue>);

/// Creates an empty queue.
pub(super) fn queue() -> (CommandSender, CommandReceiver) {
    let queue = Arc::<Queue>::default();
    (CommandSender(Arc::clone(&queue)), CommandReceiver(queue))
}

impl CommandSender {
    /// Queues a command and wakes the hub. Waits while the queue is full.
    pub(super) async fn send(&self, command: Command) {
        self.wait_for_room().await;
        self.push(command);
    }

    /// Queues a command for the next time that the hub is woken. Waits while the queue is full.
    pub(super) async fn send_asleep(&self, command: Command) {
        self.wait_for_room().await;
        let mut state = self.0.state();
        state.commands.push_back(command);
        let count = state.commands.len();
        drop(state);
        if count >= MAX_ASLEEP {
            self.0.arrived.notify_one();
        }
    }

    /// Queues a command and wakes the hub, even if the queue is full.
    pub(super) fn push(&self, command: Command) {
        self.0.state().commands.push_back(command);
        self.0.arrived.notify_one();
    }

    /// Waits while the queue is full. Senders that wait at the same time may exceed the capacity by one command each.
    async fn wait_for_room(&self) {
        loop {
            // Registered before the length is read, so that no notification is missed.
            let drained = self.0.drained.notified();
            if self.0.state().commands.len() < CAPACITY {
                return;
            }
            drained.await;
        }
    }
}

impl Drop for CommandSender {
    fn drop(&mut self) {
        self.0.state().is_closed = true;
        self.0.arrived.notify_one();
    }
}

impl CommandReceiver {
    /// Waits for commands and moves them to a buffer; returns false after the last one.
    pub(super) async fn receive(&self, buffer: &mut Vec<Command>) -> bool {
        loop {
            if self.take(buffer) {
                return !buffer.is_empty();
            }
            self.0.arrived.notified().await;
        }
    }

    /// Moves queued commands to a buffer; returns false if there are none yet.
    fn take(&self, buffer: &mut Vec<Command>) -> bool {
        let mut state = self.0.state();
        let is_full = state.commands.len() >= CAPACITY;
        let count = state.commands.len().min(MAX_AT_ONCE);
        buffer.extend(state.commands.drain(..count));
        let is_closed = state.is_closed;
        drop(state);
        if is_full {
            self.0.drained.notify_waiters();
        }
        count > 0 || is_closed
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    use futures_util::FutureExt as _;

    use super::super::Subscriber;
    use super::*;

    /// Counts how often the hub is woken.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn unsubscribe(listener: u64) -> Command {
        Command::Unsubscribe(Subscriber {
            listener,
            subscription: 1,
        })
    }

    fn listeners(commands: &[Command]) -> Vec<u64> {
        let mut listeners = Vec::new();
        for command in commands {
            match command {
                Command::Unsubscribe(subscriber) => listeners.push(subscriber.listener),
                Command::RemoveListener(listener) => listeners.push(*listener),
                other => panic!("{other:?}"),
            }
        }
        listeners
    }

    #[test]
    fn commands_that_can_wait_do_not_wake_the_hub_and_keep_their_order() {
        let (sender, receiver) = queue();
        let wakes = Arc::<Wakes>::default();
        let waker = Waker::from(wakes.clone());
        let mut context = Context::from_waker(&waker);
        let mut buffer = Vec::new();
        {
            let mut receiving = pin!(receiver.receive(&mut buffer));
            assert!(receiving.as_mut().poll(&mut context).is_pending());
            for listener in 0..3 {
                sender.send_asleep(unsubscribe(listener)).now_or_never();
            }
            assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
            sender.push(Command::RemoveListener(3));
            assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
            assert_eq!(receiving.as_mut().poll(&mut context), Poll::Ready(true));
        }
        assert_eq!(listeners(&buffer), [0, 1, 2, 3]);
        buffer.clear();
        // Many of them do, and the last sender.
        let mut receiving = pin!(receiver.receive(&mut buffer));
        assert!(receiving.as_mut().poll(&mut context).is_pending());
        for listener in 0..MAX_ASLEEP as u64 {
            sender.send_asleep(unsubscribe(listener)).now_or_never();
        }
        assert_eq!(wakes.0.load(Ordering::SeqCst), 2);
        drop(sender);
        assert_eq!(receiving.as_mut().poll(&mut context), Poll::Ready(true));
    }

    #[test]
    fn a_full_queue_lets_senders_wait_until_the_hub_has_taken_something() {
        let (sender, receiver) = queue();
        for _ in 0..CAPACITY {
            assert!(sender.send(unsubscribe(1)).now_or_never().is_some());
        }
        let mut waiting = pin!(sender.send(unsubscribe(2)));
        assert!(waiting.as_mut().now_or_never().is_none());
        let mut buffer = Vec::new();
        assert_eq!(receiver.receive(&mut buffer).now_or_never(), Some(true));
        assert!(waiting.as_mut().now_or_never().is_some());
        while receiver.receive(&mut buffer).now_or_never() == Some(true) {}
        assert_eq!(buffer.len(), CAPACITY + 1);
    }

    #[test]
    fn the_hub_ends_after_the_last_command() {
        let (sender, receiver) = queue();
        sender.push(Command::RemoveListener(1));
        drop(sender);
        let mut buffer = Vec::new();
        assert_eq!(receiver.receive(&mut buffer).now_or_never(), Some(true));
        buffer.clear();
        assert_eq!(receiver.receive(&mut buffer).now_or_never(), Some(false));
    }
}
