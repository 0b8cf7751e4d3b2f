//! Generated events of repositories and authors.

use std::sync::Arc;

use nostr::event::{Event, EventBuilder, FinalizeEvent, Kind, Tag};
use nostr::key::Keys;
use nostr::types::Timestamp;

pub(crate) const REPOSITORIES: usize = 1_000;
const AUTHORS: usize = 200;
/// Commits that have results of CI. As many events name one of them as name one repository.
const BUILT_COMMITS: usize = 150;
/// The time of the first event; the others follow about every minute.
const FIRST_EVENT_AT: u64 = 1_700_000_000;

pub(crate) struct Dataset {
    pub(crate) events: Vec<Arc<Event>>,
    /// Events that are saved while others are read.
    pub(crate) extra: Vec<Arc<Event>>,
    pub(crate) coordinates: Vec<String>,
    pub(crate) now: Timestamp,
}

impl Dataset {
    pub(crate) fn generate(count: usize) -> Self {
        let authors: Vec<Keys> = (0..AUTHORS).map(|_| Keys::generate()).collect();
        let coordinates: Vec<String> = (0..REPOSITORIES)
            .map(|n| format!("30617:{}:repo-{n}", authors[n % AUTHORS].public_key()))
            .collect();
        let total = count + count / 4;
        let writer = EventWriter {
            authors: &authors,
            coordinates: &coordinates,
        };
        let half = total / 2;
        // Signing is most of the work, and there are two cores at least.
        let mut events = std::thread::scope(|scope| {
            let second = scope.spawn(|| (half..total).map(|n| writer.write(n)).collect::<Vec<_>>());
            let mut events: Vec<_> = (0..half).map(|n| writer.write(n)).collect();
            events.extend(second.join().unwrap());
            events
        });
        let extra = events.split_off(count);
        Self {
            events,
            extra,
            coordinates,
            now: Timestamp::from_secs(FIRST_EVENT_AT + 100 * total as u64),
        }
    }
}

struct EventWriter<'a> {
    authors: &'a [Keys],
    coordinates: &'a [String],
}

impl EventWriter<'_> {
    /// Writes the n-th event: announcements first, then states, patches, pull requests, issues,
    /// results of CI and comments.
    fn write(&self, n: usize) -> Arc<Event> {
        let mixed = n.wrapping_mul(2_654_435_761) >> 7;
        let repository = if n < REPOSITORIES {
            n
        } else {
            mixed % REPOSITORIES
        };
        let kind = match (n < REPOSITORIES, n % 20) {
            (true, _) => 30_617,
            (_, 0) => 30_618,
            (_, 1..=4) => 1_617,
            (_, 5..=6) => 1_618,
            (_, 7..=10) => 1_621,
            (_, 11..=13) => 9_842,
            _ => 1_111,
        };
        let owner = repository % self.authors.len();
        let author = if kind >= 30_000 {
            owner
        } else {
            (mixed / 7) % self.authors.len()
        };
        EventBuilder::new(Kind::from_u16(kind), content(n))
            .tags(self.tags(kind, repository, mixed))
            .custom_created_at(Timestamp::from_secs(
                FIRST_EVENT_AT + 60 * n as u64 + (mixed % 50) as u64,
            ))
            .finalize(&self.authors[author])
            .map(Arc::new)
            .unwrap()
    }

    fn tags(&self, kind: u16, repository: usize, mixed: usize) -> Vec<Tag> {
        let coordinate = self.coordinates[repository].as_str();
        let owner = self.authors[repository % self.authors.len()]
            .public_key()
            .to_hex();
        let other = self.authors[mixed % self.authors.len()]
            .public_key()
            .to_hex();
        let name = format!("repo-{repository}");
        let root = format!("{:064x}", mixed % 20_000);
        let commit = format!("{mixed:040x}");
        let built = built_commit(mixed);
        let tags: Vec<Vec<&str>> = match kind {
            30_617 => vec![
                vec!["d", &name],
                vec!["name", &name],
                vec!["r", &commit, "euc"],
            ],
            30_618 => vec![vec!["d", &name], vec!["refs/heads/main", &commit]],
            1_111 => vec![
                vec!["A", coordinate],
                vec!["a", coordinate],
                vec!["E", &root],
                vec!["e", &root],
                vec!["p", &other],
                vec!["K", "1621"],
            ],
            9_842 => vec![vec!["a", coordinate], vec!["c", &built]],
            _ => {
                vec![
                    vec!["a", coordinate],
                    vec!["p", &owner],
                    vec!["e", &root],
                    vec!["r", &commit],
                ]
            }
        };
        tags.into_iter()
            .map(|tag| Tag::parse(tag).unwrap())
            .collect()
    }
}

/// Returns a commit that has results of CI.
pub(crate) fn built_commit(n: usize) -> String {
    format!("{:040x}", n % BUILT_COMMITS)
}

/// Returns about 500 bytes that differ between events.
fn content(n: usize) -> String {
    let words = (0..50).map(|w| format!("{:09x}", n.wrapping_mul(w + 1) ^ (w << 20)));
    words.collect::<Vec<_>>().join(" ")
}
