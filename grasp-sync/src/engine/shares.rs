//! What relays are followed and connected to with, apart for relays of repositories, relays of users and visits, so that
//! a crowd of one kind leaves the others theirs.

use grasp_core::resources::{Bounds, Pool};

use super::Config;
use super::visits::Scope;

/// Relays that are followed.
const MAX_FOLLOWED: u64 = 10_000;
/// Of these, relays that are followed for visits alone. There are fewer visits at the same time.
const MAX_VISITED: u64 = 100;
/// Connections below which no relays of users are followed: each kind needs some.
const MIN_CONNECTIONS: u64 = 4;

/// One pool for each thing that a relay can be followed for.
#[derive(Debug)]
pub(super) struct Shares {
    listed: Pool,
    of_users: Pool,
    visits: Pool,
}

impl Shares {
    /// Returns the places of relays that are followed: half of them for what served repositories list; and if relays of
    /// users are followed, a quarter for these.
    pub(super) fn of_places(config: &Config) -> Self {
        if !config.follows_user_relays {
            return Self::divided(MAX_FOLLOWED, 0, 0);
        }
        Self::divided(MAX_FOLLOWED, MAX_FOLLOWED / 4, MAX_VISITED)
    }

    /// Returns the connections: half of them for what served repositories list; and if relays of users are followed, a
    /// quarter for these, and an eighth for visits.
    pub(super) fn of_connections(config: &Config) -> Self {
        let total = config.connections as u64;
        if !config.follows_user_relays || total < MIN_CONNECTIONS {
            return Self::divided(total, 0, 0);
        }
        Self::divided(total, total / 4, (total / 8).max(1))
    }

    fn divided(total: u64, of_users: u64, visits: u64) -> Self {
        let listed = total - of_users - visits;
        Self {
            listed: Pool::new(Bounds {
                total: listed,
                reserve: (total / 2).min(listed.saturating_sub(1)),
                per_author: total.div_ceil(4),
                smallest: 1,
            }),
            of_users: Pool::new(Bounds {
                total: of_users,
                reserve: 0,
                per_author: of_users.div_ceil(4),
                smallest: 1,
            }),
            visits: Pool::new(Bounds {
                reserve: 0,
                ..Bounds::of(visits)
            }),
        }
    }

    /// Returns the pool of a scope.
    pub(super) fn of(&self, scope: Scope) -> &Pool {
        match scope {
            Scope::Full => &self.listed,
            Scope::Roots => &self.of_users,
            Scope::Visits => &self.visits,
        }
    }

    /// Returns the pool of a scope, to be changed.
    pub(super) fn of_mut(&mut self, scope: Scope) -> &mut Pool {
        match scope {
            Scope::Full => &mut self.listed,
            Scope::Roots => &mut self.of_users,
            Scope::Visits => &mut self.visits,
        }
    }

    #[cfg(any(test, feature = "test-util"))]
    /// Returns what is taken of all pools.
    pub(super) fn taken(&self) -> u64 {
        let pools = [&self.listed, &self.of_users, &self.visits];
        pools.iter().map(|pool| pool.usage().all).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_some_and_all_together_have_no_more_than_is_set() {
        for connections in 0..600 {
            for follows_user_relays in [false, true] {
                let shares = Shares::of_connections(&Config {
                    connections,
                    follows_user_relays,
                    ..Config::new("us.example".parse().unwrap())
                });
                let scopes = [Scope::Full, Scope::Roots, Scope::Visits];
                let totals = scopes.map(|scope| shares.of(scope).bounds().total);
                assert_eq!(totals.iter().sum::<u64>(), connections as u64);
                let listed = shares.of(Scope::Full).bounds();
                assert!(listed.reserve < listed.total.max(1), "held ones have some");
                let divided = follows_user_relays && connections >= 4;
                assert_eq!(totals[1] > 0 && totals[2] > 0, divided, "{connections}");
            }
        }
    }
}
