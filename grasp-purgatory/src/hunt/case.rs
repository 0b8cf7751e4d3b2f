//! What is wanted under one identifier, and who is being visited for it.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::{CloneUrl, Host, Identifier, Mono, Oid};

use super::plan::{Advertisement, Needs};
use super::throttle::Pass;
use super::{Errand, HuntConfig};

/// The hunt for one identifier. Outlives an attempt for as long as somebody is visited or stood in line for.
#[derive(Debug, Default)]
pub(super) struct Case {
    pub(super) needs: Needs,
    /// Where the present attempt looks, in order.
    pub(super) places: Vec<CloneUrl>,
    /// Which of them it has tried.
    pub(super) tried: BTreeSet<CloneUrl>,
    /// The servers in whose lines we stand, and the addresses tried there.
    pub(super) lines: BTreeMap<Host, BTreeSet<CloneUrl>>,
    pub(super) visits: BTreeMap<CloneUrl, Visit>,
}

/// One address being asked: for the wanted objects, and if it refuses those, for its advertisement and what that shows.
#[derive(Debug)]
pub(super) struct Visit {
    pub(super) path: Path,
    pub(super) step: Step,
    pub(super) state: State,
    pub(super) advertised: Option<Advertisement>,
    /// The objects that asking for them directly did not bring, until the advertisement says more about them.
    pub(super) failed: Option<DirectFailure>,
    /// Whether the advertised objects were asked for together.
    pub(super) batched: bool,
    pub(super) guesses_left: usize,
}

/// Objects that were asked for without an advertisement and did not come.
#[derive(Debug)]
pub(super) struct DirectFailure {
    pub(super) asked: BTreeSet<Oid>,
    pub(super) lacking: BTreeSet<Oid>,
    /// Whether the server refused them, rather than giving something broken.
    pub(super) is_refusal: bool,
}

/// How a visit came about, and so what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// The attempt makes it and waits for its end.
    Main,
    /// So it does, although it takes long: too many others are late.
    Overdue,
    /// The attempt made it and waits no longer.
    Late,
    /// The server's line had come to us.
    Line,
}

/// What a visit asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Not decided before the turn comes.
    Open,
    /// All that is wanted, without asking what the server has.
    Direct(BTreeSet<Oid>),
    List,
    Batch(BTreeSet<Oid>),
    Guess(Oid),
}

/// Whether it is being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Waits for its turn in the server's line.
    Parked,
    /// The server may be asked; waits for a hand to ask it with.
    Ready,
    Flying(Errand),
}

/// A conversation under way.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) identifier: Identifier,
    pub(super) url: CloneUrl,
    /// What was asked for, if it was objects.
    pub(super) asked: BTreeSet<Oid>,
    pub(super) pass: Pass,
    pub(super) began: Mono,
    /// Whether the server has begun to answer.
    pub(super) has_answered: bool,
    /// When it is next looked at because it takes long.
    pub(super) late_at: Option<Mono>,
    /// When it gives way to others who wait; `None` once it was told to.
    pub(super) gives_way_at: Option<Mono>,
}

impl Case {
    /// Whether an attempt waits for a visit.
    pub(super) fn has_main(&self) -> bool {
        self.visits.values().any(|visit| matches!(visit.path, Path::Main | Path::Overdue))
    }

    /// Stops waiting for a visit that takes long, unless too many are late. Says whether there is one to wait for no
    /// longer.
    pub(super) fn let_go(&mut self, most_late: usize) -> bool {
        if self.late() >= most_late {
            return false;
        }
        let overdue = self.visits.values_mut().find(|visit| visit.path == Path::Overdue);
        overdue.map(|visit| visit.path = Path::Late).is_some()
    }

    /// Whether a turn with a server has not ended, or not even begun.
    pub(super) fn is_in_line(&self) -> bool {
        self.visits.values().any(|visit| visit.path == Path::Line)
    }

    /// How many visits are late.
    pub(super) fn late(&self) -> usize {
        self.visits.values().filter(|visit| visit.path == Path::Late).count()
    }

    /// The servers being visited or waited for.
    pub(super) fn busy_hosts(&self) -> BTreeSet<Host> {
        self.visits.keys().map(CloneUrl::host).collect()
    }

    /// The visit that waits for its turn with a server.
    pub(super) fn parked_at(&self, host: &Host) -> Option<&CloneUrl> {
        let parked = self.visits.iter().filter(|(_, visit)| visit.state == State::Parked);
        parked.map(|(url, _)| url).find(|url| url.host() == *host)
    }

    /// The conversations under way.
    pub(super) fn errands(&self) -> impl Iterator<Item = Errand> + '_ {
        self.visits.values().filter_map(|visit| match visit.state {
            State::Flying(errand) => Some(errand),
            State::Parked | State::Ready => None,
        })
    }
}

impl Visit {
    pub(super) fn new(path: Path, config: &HuntConfig) -> Self {
        Self {
            path,
            step: Step::Open,
            state: State::Parked,
            advertised: None,
            failed: None,
            batched: false,
            guesses_left: config.guesses_per_visit,
        }
    }
}

impl Step {
    /// The objects that are asked for.
    pub(super) fn oids(&self) -> BTreeSet<Oid> {
        match self {
            Self::Open | Self::List => BTreeSet::new(),
            Self::Direct(oids) | Self::Batch(oids) => oids.clone(),
            Self::Guess(oid) => BTreeSet::from([*oid]),
        }
    }
}
