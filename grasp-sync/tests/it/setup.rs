//! A small setup: one repository of ours, some relays, and a log of what is sent to them.

use std::time::Duration;

use grasp_core::nostr::event::{Event, EventId};
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{ConnectionStatus, IndexChange, SyncLevel};
use grasp_core::{Mono, RelayUrl, RepoId, Version};
use grasp_sync::engine::{Accepted, Config, ConnId, Frame, Input, Report, Said, SubId};

use crate::sim::chance::Chance;
use crate::sim::local::our_url;
use crate::sim::peer::Peer;
use crate::sim::script::Script;
use crate::sim::world::{relay, repo};
use crate::sim::{START, Sim, event};

pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HOUR: Duration = Duration::from_secs(60 * 60);

pub(crate) fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Returns a version of announcements that stand for no event. All are equal, so the last at a level counts.
pub(crate) fn version() -> Version {
    Version {
        created_at: Timestamp::from_secs(START),
        id: EventId::from_byte_array([0; 32]),
    }
}

/// Returns the engine's own defaults.
pub(crate) fn defaults() -> Config {
    let mut config = Config::new("us.example".parse().unwrap());
    config.can_authenticate = true;
    config
}

pub(crate) struct Setup {
    pub(crate) sim: Sim,
    pub(crate) repo: RepoId,
    pub(crate) chance: Chance,
}

impl Setup {
    /// Sets up relay 0 with this script and this many issues of the repository. Nothing is announced yet.
    pub(crate) fn new(config: Config, script: Script, issues: usize) -> Self {
        let mut chance = Chance::seeded(3);
        let repo = repo(&mut chance, "grasp");
        let mut sim = Sim::new(3, config);
        let events = (0..issues).map(|n| {
            event::issue(
                &mut chance,
                START - 100_000 + n as u64,
                std::slice::from_ref(&repo),
            )
        });
        let events: Vec<Event> = events.collect();
        sim.peers.insert(relay(0), Peer::new(script, events));
        sim.handle(Input::FeedCaughtUp);
        Self { sim, repo, chance }
    }

    /// The same, with the repository announced at us and at relay 0.
    pub(crate) fn announced(config: Config, script: Script, issues: usize) -> Self {
        let mut setup = Self::new(config, script, issues);
        setup.announce(&[relay(0)]);
        setup
    }

    /// Announces the repository here, or again, with these relays and ours.
    pub(crate) fn announce(&mut self, relays: &[RelayUrl]) {
        let listed: Vec<_> = relays.iter().cloned().chain([our_url()]).collect();
        let at = self.sim.now.unix.as_secs();
        let event = event::announcement(&mut self.chance, &self.repo, at, &listed);
        self.sim.accept(event);
    }

    /// Announces the repository from relay 0 at this level.
    pub(crate) fn want(&mut self, level: SyncLevel) {
        let relays = [relay(0)].into();
        let change = IndexChange::Announced {
            repo: self.repo.clone(),
            version: version(),
            relays,
            level,
        };
        self.tell(change);
    }

    pub(crate) fn run(&mut self, length: Duration) -> &mut Self {
        self.sim.run_for(length);
        self
    }

    /// Publishes an issue at relay 0 now.
    pub(crate) fn publish_issue(&mut self) -> Event {
        let at = self.sim.now.unix.as_secs();
        let issue = event::issue(&mut self.chance, at, std::slice::from_ref(&self.repo));
        self.sim
            .publish_after(Duration::ZERO, &relay(0), issue.clone());
        issue
    }

    /// Publishes an issue at relay 0 now that is dated a week ago, as imported ones are.
    pub(crate) fn publish_old_issue(&mut self) -> Event {
        let at = self.sim.now.unix.as_secs() - 7 * 24 * 60 * 60;
        let issue = event::issue(&mut self.chance, at, std::slice::from_ref(&self.repo));
        self.sim
            .publish_after(Duration::ZERO, &relay(0), issue.clone());
        issue
    }

    /// Returns an issue that is not published.
    pub(crate) fn chance_issue_dated(&mut self, seconds_ago: u64) -> Event {
        let at = self.sim.now.unix.as_secs() - seconds_ago;
        event::issue(&mut self.chance, at, std::slice::from_ref(&self.repo))
    }

    /// Returns the live subscriptions that were sent to relay 0 and not closed.
    pub(crate) fn live_subs(&mut self) -> Vec<SubId> {
        self.peer().live_subs()
    }

    /// Sends a message from relay 0.
    pub(crate) fn receive(&mut self, conn: ConnId, said: Said) {
        if let Said::Closed { sub, .. } = &said {
            self.peer().drop_sub(*sub);
        }
        self.sim.handle(Input::Heard {
            relay: relay(0),
            conn,
            said,
        });
    }

    /// Returns the requests to relay 0 since then: their layer, and whether by reconciliation.
    pub(crate) fn starts_since(&self, since: Mono) -> Vec<Start> {
        let mut starts = self.starts_at(&relay(0));
        starts.retain(|start| start.at >= since);
        starts
    }

    /// Returns the requests to a relay.
    pub(crate) fn starts_at(&self, relay: &RelayUrl) -> Vec<Start> {
        let sent = self.sim.frames.iter().filter(|(_, to, _)| to == relay);
        sent.filter_map(|(at, _, frame)| Start::of(*at, frame))
            .collect()
    }

    /// Returns how often a relay was dialled.
    pub(crate) fn dials_of(&self, relay: &RelayUrl) -> usize {
        self.sim.dials.iter().filter(|(_, to)| to == relay).count()
    }

    pub(crate) fn is_connected(&self, relay: &RelayUrl) -> bool {
        let mut conns = self.sim.conns.iter().filter(|(to, _)| to == relay);
        conns.any(|(_, conn)| self.sim.peers[relay].is_connected(*conn))
    }

    /// Tells a change of what is wanted.
    pub(crate) fn tell(&mut self, change: IndexChange) {
        let accepted = Accepted {
            event: None,
            is_uncounted: false,
            change: Some(change),
        };
        self.sim.handle(Input::Accepted(accepted));
    }

    pub(crate) fn starts(&self) -> Vec<Start> {
        self.starts_since(Mono::ZERO)
    }

    /// Clears the log of what was sent.
    pub(crate) fn forget(&mut self) -> &mut Self {
        self.sim.frames.clear();
        self.sim.reports.clear();
        self
    }

    pub(crate) fn status(&self) -> Option<ConnectionStatus> {
        self.sim
            .reports
            .iter()
            .rev()
            .find_map(|report| match report {
                Report::Status { status, .. } => Some(*status),
                _ => None,
            })
    }

    pub(crate) fn has(&self, event: &Event) -> bool {
        self.sim.local.stored.contains_key(&event.id)
    }

    pub(crate) fn here(&self) -> usize {
        self.sim.local.stored.len()
    }

    pub(crate) fn now(&self) -> Mono {
        self.sim.now.mono
    }

    pub(crate) fn peer(&mut self) -> &mut Peer {
        self.sim.peers.get_mut(&relay(0)).unwrap()
    }

    pub(crate) fn count_reports(&self, which: impl Fn(&Report) -> bool) -> usize {
        self.sim
            .reports
            .iter()
            .filter(|report| which(report))
            .count()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) at: Mono,
    pub(crate) filters: Vec<Filter>,
    pub(crate) by: By,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Live,
    Page,
    Ids,
    Neg,
}

impl Start {
    fn of(at: Mono, frame: &Frame) -> Option<Self> {
        let (filters, by) = match frame {
            Frame::Subscribe {
                filters,
                path: grasp_core::admission::SyncPath::Live,
                ..
            } => (filters.clone(), By::Live),
            Frame::Subscribe { filters, .. } if filters[0].ids.is_some() => {
                (filters.clone(), By::Ids)
            }
            Frame::Subscribe { filters, .. } => (filters.clone(), By::Page),
            Frame::NegOpen { filter, .. } => (vec![(**filter).clone()], By::Neg),
            _ => return None,
        };
        Some(Self { at, filters, by })
    }

    /// Returns whether it is for announcements.
    pub(crate) fn is_layer_one(&self) -> bool {
        self.filters
            .iter()
            .all(|filter| filter.generic_tags.is_empty() && filter.ids.is_none())
    }
}

pub(crate) fn by(starts: &[Start], by: By) -> Vec<&Start> {
    starts.iter().filter(|start| start.by == by).collect()
}
