//! Quotas of git data: of a repository, of an owner with all repositories, and of the server.
//!
//! Each stored byte belongs to one repository, and so to one owner.
//!
//! ```
//! use grasp_core::quota::{GitUsage, Quota, QuotaExceeded, QuotaSubject, Quotas};
//! use grasp_core::resources::Claimant;
//! use grasp_core::RepoId;
//! use nostr::key::PublicKey;
//!
//! let owner = PublicKey::from_byte_array([1; 32]);
//! let repo = RepoId::new(owner, "hello".parse().unwrap());
//! let mut quotas = Quotas::default();
//! quotas.owner_bytes = 2 << 30;
//! let used = GitUsage { repository: 0, owner: 2 << 30, total: 2 << 30 };
//! let alice = Claimant::default().signed_by(owner);
//! let refused: QuotaExceeded = quotas.judge(&repo, &alice, used, 1 << 20).unwrap_err();
//! assert_eq!(refused.quota, Quota::Owner(owner));
//! assert!(refused.to_string().contains("uses 2.0 of 2.0 GiB here; this push needs 1.0 MiB"));
//!
//! // The operator gives her more.
//! quotas.overrides.insert(QuotaSubject::Owner(owner), 4 << 30);
//! assert_eq!(quotas.judge(&repo, &alice, used, 1 << 20), Ok(()));
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use nostr::key::PublicKey;

use crate::repo::RepoId;
use crate::resources::Claimant;
use crate::service::npub;
use crate::text::{ParseError, invalid, serde_as_text};

const KIB: u64 = 1 << 10;
const GIB: u64 = 1 << 30;

/// An owner or a repository that the operator may give a quota of its own. Its text is the key in hex, or the
/// coordinate of the repository.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuotaSubject {
    /// All repositories of an owner together.
    Owner(PublicKey),
    /// One repository.
    Repository(RepoId),
}

impl fmt::Display for QuotaSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner(key) => f.write_str(&key.to_hex()),
            Self::Repository(repo) => repo.fmt(f),
        }
    }
}

impl FromStr for QuotaSubject {
    type Err = ParseError;

    /// Reads a key (hex or `npub`), a coordinate, or `NPUB/NAME`.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        if let Ok(repo) = text.parse() {
            return Ok(Self::Repository(repo));
        }
        let (key, name) = match text.split_once('/') {
            Some((key, name)) => (key, Some(name)),
            None => (text, None),
        };
        let Ok(owner) = PublicKey::parse(key) else {
            return invalid("expected NPUB, NPUB/NAME or 30617:KEY:NAME");
        };
        match name {
            None => Ok(Self::Owner(owner)),
            Some(name) => {
                let name = name.strip_suffix(".git").unwrap_or(name);
                Ok(Self::Repository(RepoId::new(owner, name.parse()?)))
            }
        }
    }
}

serde_as_text!(QuotaSubject);

/// The limits of git data that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quotas {
    /// Bytes that one repository may have.
    pub repository_bytes: u64,
    /// Bytes that all repositories of one owner may have together.
    pub owner_bytes: u64,
    /// Bytes that all repositories may have together.
    pub total_bytes: u64,
    /// Bytes that the operator gave single owners and repositories instead.
    pub overrides: BTreeMap<QuotaSubject, u64>,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            repository_bytes: 16 * GIB,
            owner_bytes: 64 * GIB,
            total_bytes: u64::MAX,
            overrides: BTreeMap::new(),
        }
    }
}

/// Bytes of git data: of a repository, of all repositories of its owner, and of all repositories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it all")]
pub struct GitUsage {
    pub repository: u64,
    pub owner: u64,
    pub total: u64,
}

/// A quota that more data would exceed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaExceeded {
    /// The quota.
    pub quota: Quota,
    /// Bytes that are used of it.
    pub used: u64,
    /// Bytes that may be used of it.
    pub limit: u64,
    /// Bytes that were to be added.
    pub needed: u64,
}

/// The quota of one party.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Quota {
    /// That of one repository.
    Repository(RepoId),
    /// That of an owner.
    Owner(PublicKey),
    /// That of the server.
    Total,
}

/// What is used of a quota, and what may be.
struct Level {
    quota: Quota,
    used: u64,
    limit: u64,
}

impl Level {
    fn room(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

impl Quotas {
    /// Returns the bytes that a repository may have.
    pub fn of_repository(&self, repo: &RepoId) -> u64 {
        let subject = QuotaSubject::Repository(repo.clone());
        let given = self.overrides.get(&subject).copied();
        given.unwrap_or(self.repository_bytes)
    }

    /// Returns the bytes that all repositories of an owner may have.
    pub fn of_owner(&self, owner: PublicKey) -> u64 {
        let given = self.overrides.get(&QuotaSubject::Owner(owner)).copied();
        given.unwrap_or(self.owner_bytes)
    }

    /// Returns whether a claimant may add this many bytes to a repository.
    pub fn judge(
        &self,
        repo: &RepoId,
        claimant: &Claimant,
        used: GitUsage,
        needed: u64,
    ) -> Result<(), QuotaExceeded> {
        for level in self.levels(repo, claimant, used) {
            if needed > level.room() {
                return Err(QuotaExceeded {
                    quota: level.quota,
                    used: level.used,
                    limit: level.limit,
                    needed,
                });
            }
        }
        Ok(())
    }

    /// Returns the bytes that a claimant may still add to a repository.
    pub fn room(&self, repo: &RepoId, claimant: &Claimant, used: GitUsage) -> u64 {
        let mut room = u64::MAX;
        for level in self.levels(repo, claimant, used) {
            room = room.min(level.room());
        }
        room
    }

    /// Returns the quotas that count for a claimant. Strangers, who add pull requests, leave a quarter of a repository and
    /// of its owner's quota to the maintainers.
    fn levels(&self, repo: &RepoId, claimant: &Claimant, used: GitUsage) -> [Level; 3] {
        let is_own = claimant.has_authority || claimant.author == Some(repo.owner);
        let share = |limit: u64| match is_own {
            true => limit,
            false => limit - limit / 4,
        };
        let of_repository = Level {
            quota: Quota::Repository(repo.clone()),
            used: used.repository,
            limit: share(self.of_repository(repo)),
        };
        let of_owner = Level {
            quota: Quota::Owner(repo.owner),
            used: used.owner,
            limit: share(self.of_owner(repo.owner)),
        };
        let total = Level {
            quota: Quota::Total,
            used: used.total,
            limit: self.total_bytes,
        };
        [of_repository, of_owner, total]
    }

    /// Returns a warning for the owner of a repository who has used nine tenths of a quota.
    pub fn warning(&self, repo: &RepoId, used: GitUsage) -> Option<String> {
        let of_owner = self.of_owner(repo.owner);
        let of_repository = self.of_repository(repo);
        if is_near(used.owner, of_owner) {
            let used = Used(used.owner, of_owner);
            return Some(format!(
                "warning: {} uses {used} here (quota.owner_bytes)",
                npub(&repo.owner)
            ));
        }
        if is_near(used.repository, of_repository) {
            let used = Used(used.repository, of_repository);
            return Some(format!(
                "warning: {} uses {used} here (git.repository_bytes)",
                name_of(repo)
            ));
        }
        None
    }
}

/// Returns whether nine tenths of a limit are used.
fn is_near(used: u64, limit: u64) -> bool {
    used > limit - limit / 10
}

fn name_of(repo: &RepoId) -> String {
    format!("{}/{}", npub(&repo.owner), repo.identifier)
}

impl std::error::Error for QuotaExceeded {}

impl fmt::Display for QuotaExceeded {
    /// Says what is used, what was needed, and who has to act.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = Used(self.used, self.limit);
        let (who, remedy) = match &self.quota {
            Quota::Repository(repo) => (
                name_of(repo),
                "ask the operator of this server for more (git.repository_bytes)",
            ),
            Quota::Owner(owner) => (
                npub(owner),
                "delete repositories, or ask the operator of this server for more (quota.owner_bytes)",
            ),
            Quota::Total => (
                "this server".into(),
                "its operator has to make room (quota.total_bytes)",
            ),
        };
        let needed = Bytes(self.needed);
        write!(
            f,
            "{who} uses {used} here; this push needs {needed} or more: {remedy}"
        )
    }
}

/// Bytes in their largest unit.
#[derive(Clone, Copy)]
struct Bytes(u64);

impl Bytes {
    /// Returns the largest unit of these bytes, and its size.
    fn unit(self) -> (&'static str, u64) {
        let units = [
            ("TiB", KIB.pow(4)),
            ("GiB", GIB),
            ("MiB", KIB.pow(2)),
            ("KiB", KIB),
        ];
        let unit = units.into_iter().find(|(_, size)| self.0 >= *size);
        unit.unwrap_or(("bytes", 1))
    }

    /// Returns the number of units of this size, with one decimal place.
    fn in_units(self, size: u64) -> String {
        match size {
            1 => self.0.to_string(),
            _ => format!("{:.1}", self.0 as f64 / size as f64),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, size) = self.unit();
        write!(f, "{} {unit}", self.in_units(size))
    }
}

/// What is used of a limit, both in the unit of the limit.
struct Used(u64, u64);

impl fmt::Display for Used {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, size) = Bytes(self.1).unit();
        let used = Bytes(self.0).in_units(size);
        let limit = Bytes(self.1).in_units(size);
        write!(f, "{used} of {limit} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn key(n: u8) -> PublicKey {
        PublicKey::from_byte_array([n; 32])
    }

    fn repo() -> RepoId {
        RepoId::new(key(1), "x".parse().unwrap())
    }

    fn owner() -> Claimant {
        Claimant::default().signed_by(key(1))
    }

    fn stranger() -> Claimant {
        Claimant::default().signed_by(key(2))
    }

    fn quotas() -> Quotas {
        Quotas {
            repository_bytes: 400,
            owner_bytes: 800,
            total_bytes: 2_000,
            overrides: BTreeMap::new(),
        }
    }

    fn used(repository: u64, owner: u64, total: u64) -> GitUsage {
        GitUsage {
            repository,
            owner,
            total,
        }
    }

    #[test]
    fn the_narrowest_quota_decides() {
        let quotas = quotas();
        for (used, room, quota) in [
            (used(100, 100, 100), 300, Quota::Repository(repo())),
            (used(0, 700, 700), 100, Quota::Owner(key(1))),
            (used(0, 0, 1_990), 10, Quota::Total),
            (used(900, 900, 2_500), 0, Quota::Repository(repo())),
        ] {
            assert_eq!(quotas.room(&repo(), &owner(), used), room);
            assert_eq!(quotas.judge(&repo(), &owner(), used, room), Ok(()));
            let refused = quotas.judge(&repo(), &owner(), used, room + 1).unwrap_err();
            assert_eq!((refused.quota, refused.needed), (quota, room + 1));
        }
    }

    #[test]
    fn strangers_leave_a_quarter_to_owner_and_maintainers() {
        let nothing = GitUsage::default();
        assert_eq!(quotas().room(&repo(), &stranger(), nothing), 300);
        let room = quotas().room(&repo(), &stranger().with_authority(), nothing);
        assert_eq!(room, 400);
        assert_eq!(quotas().room(&repo(), &owner(), nothing), 400);
        assert_eq!(quotas().room(&repo(), &stranger(), used(0, 500, 500)), 100);
    }

    #[test]
    fn the_operator_may_give_one_owner_and_one_repository_another_quota() {
        let mut quotas = quotas();
        quotas
            .overrides
            .insert(QuotaSubject::Repository(repo()), 1_000);
        assert_eq!(quotas.room(&repo(), &owner(), GitUsage::default()), 800);
        quotas.overrides.insert(QuotaSubject::Owner(key(1)), 1_200);
        assert_eq!(quotas.room(&repo(), &owner(), GitUsage::default()), 1_000);
        let other = RepoId::new(key(2), "x".parse().unwrap());
        let room = quotas.room(&other, &stranger(), GitUsage::default());
        assert_eq!(room, 400);
    }

    #[test]
    fn a_refusal_says_what_is_used_what_is_needed_and_who_has_to_act() {
        let quotas = Quotas {
            owner_bytes: 2 * GIB,
            total_bytes: 10 * GIB,
            ..Quotas::default()
        };
        let refused = |used, needed| {
            let refused = quotas.judge(&repo(), &owner(), used, needed);
            refused.unwrap_err().to_string()
        };
        let text = refused(used(0, 2 * GIB - 100 * MIB, 0), 300 * MIB);
        let npub = npub(&key(1));
        assert!(
            text.starts_with(&format!(
                "{npub} uses 1.9 of 2.0 GiB here; this push needs 300.0 MiB"
            )),
            "{text}"
        );
        assert!(text.contains("quota.owner_bytes"), "{text}");
        let text = refused(used(16 * GIB, 0, 0), 1);
        assert!(
            text.starts_with(&format!("{npub}/x uses 16.0 of 16.0 GiB")),
            "{text}"
        );
        let text = refused(used(0, 0, 10 * GIB), 7);
        assert!(text.contains("needs 7 bytes"), "{text}");
        assert!(text.contains("operator has to make room"), "{text}");
    }

    #[test]
    fn an_owner_is_warned_from_nine_tenths_on() {
        assert_eq!(quotas().warning(&repo(), used(360, 720, 0)), None);
        let warning = quotas().warning(&repo(), used(360, 721, 0)).unwrap();
        assert!(warning.contains("uses 721 of 800 bytes"), "{warning}");
        let warning = quotas().warning(&repo(), used(361, 400, 0)).unwrap();
        assert!(warning.contains("/x uses 361 of 400 bytes"), "{warning}");
    }

    #[test]
    fn a_subject_is_read_in_every_spelling_and_written_in_one() {
        let npub = npub(&key(1));
        let hex = key(1).to_hex();
        for text in [&npub, &hex] {
            assert_eq!(text.parse(), Ok(QuotaSubject::Owner(key(1))));
        }
        for text in [
            format!("{npub}/x"),
            format!("{npub}/x.git"),
            format!("30617:{hex}:x"),
        ] {
            assert_eq!(text.parse(), Ok(QuotaSubject::Repository(repo())), "{text}");
        }
        assert_eq!(QuotaSubject::Owner(key(1)).to_string(), hex);
        let coordinate = QuotaSubject::Repository(repo()).to_string();
        assert_eq!(coordinate, format!("30617:{hex}:x"));
        for text in ["", "x", "npub1x/x", "30618:ab:x"] {
            assert!(text.parse::<QuotaSubject>().is_err(), "{text}");
        }
    }
}
