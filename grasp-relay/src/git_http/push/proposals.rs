//! Refs of pull requests that a push sets itself.

use std::collections::BTreeSet;

use grasp_core::push::{AuthorisedPush, PushCommand};
use grasp_core::service::Endpoint;
use grasp_purgatory::git::Refs;

use super::{Push, PushError};
use crate::git_http::push_facts::PushFacts;

/// A pull request whose ref is to be set.
struct Missing {
    command: PushCommand,
    /// A maintainer of the repository is its author.
    is_maintainers: bool,
}

impl Push {
    /// Sets the refs of stored pull requests that no release has set: those of a contributor's own repository, and those
    /// that are too many to be compared at each release. Returns whether there was room for all of them.
    pub(super) async fn set_proposals(
        &self,
        push: &AuthorisedPush,
        facts: &PushFacts,
    ) -> Result<bool, PushError> {
        let repos = &self.target.repos;
        let repo = &self.target.repo;
        let refs = repos.refs(repo).await?;
        let mut commands = push.execute().to_vec();
        commands.retain(|it| it.name.event().is_some() && refs.get(&it.name).copied() != it.new);
        if commands.is_empty() {
            return Ok(true);
        }
        let missing = match self.target.endpoint {
            Endpoint::Repository => self.stored(commands, facts).await?,
            Endpoint::PullRequests => commands.into_iter().map(Missing::of_others).collect(),
        };
        let asked = missing.len();
        let now = self.purgatory.relay().now().unix;
        let mut guard = repos.lock(repo).await?;
        let view = guard.row().await?.view.unwrap_or_default();
        let fitting = fitting(missing, &view.refs, self.git.limits.pushed_proposals);
        guard.move_refs(&fitting, now).await?;
        Ok(fitting.len() == asked)
    }

    /// Returns those of these pull requests that are stored.
    async fn stored(
        &self,
        commands: Vec<PushCommand>,
        facts: &PushFacts,
    ) -> Result<Vec<Missing>, PushError> {
        let ids = commands.iter().filter_map(|command| command.name.event());
        let ids: BTreeSet<_> = ids.collect();
        let authors = self.git.stored(&ids).await?;
        let mut missing = Vec::new();
        for command in commands {
            let author = command.name.event().and_then(|id| authors.get(&id));
            if let Some(author) = author {
                missing.push(Missing {
                    command,
                    is_maintainers: facts.is_maintainer(author),
                });
            }
        }
        Ok(missing)
    }
}

impl Missing {
    fn of_others(command: PushCommand) -> Self {
        Self {
            command,
            is_maintainers: false,
        }
    }
}

/// Returns the commands that a repository with these refs takes: those that add no ref, those of its maintainers, and as
/// many others as there is room for.
fn fitting(missing: Vec<Missing>, refs: &Refs, most: usize) -> Vec<PushCommand> {
    let present = refs.refs.keys().filter(|name| name.event().is_some());
    let mut room = most.saturating_sub(present.count());
    let mut fitting = Vec::new();
    for one in missing {
        let is_free = one.is_maintainers || refs.refs.contains_key(&one.command.name);
        if !is_free && room == 0 {
            continue;
        }
        room = room.saturating_sub(1);
        fitting.push(one.command);
    }
    fitting
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use grasp_core::{Oid, RefName};
    use grasp_purgatory::git::Target;
    use nostr::event::EventId;

    use super::*;

    fn name(n: u8) -> RefName {
        RefName::nostr(EventId::from_byte_array([n; 32]))
    }

    fn missing(n: u8, is_maintainers: bool) -> Missing {
        let command = PushCommand {
            name: name(n),
            old: None,
            new: Some(Oid::Sha1([n; 20])),
        };
        Missing {
            command,
            is_maintainers,
        }
    }

    /// Returns refs of a branch and of these pull requests.
    fn refs(proposals: &[u8]) -> Refs {
        let target = Target {
            oid: Oid::Sha1([1; 20]),
            peeled: None,
        };
        let mut refs = BTreeMap::from([("refs/heads/main".parse().unwrap(), target)]);
        refs.extend(proposals.iter().map(|n| (name(*n), target)));
        Refs {
            refs,
            ..Refs::default()
        }
    }

    fn fits(all: Vec<Missing>, present: &[u8], most: usize) -> Vec<RefName> {
        let fitting = fitting(all, &refs(present), most).into_iter();
        fitting.map(|command| command.name).collect()
    }

    #[test]
    fn pull_requests_are_set_up_to_the_limit_of_the_repository() {
        let all = || (3..7).map(|n| missing(n, false)).collect();
        assert_eq!(
            fits(all(), &[1, 2], 4),
            [name(3), name(4)],
            "branches do not count"
        );
        assert_eq!(fits(all(), &[1, 2], 2), []);
        assert_eq!(fits(all(), &[1, 2], 6).len(), 4);
    }

    #[test]
    fn pull_requests_of_maintainers_and_refs_that_exist_have_no_limit() {
        let all = vec![
            missing(1, false),
            missing(3, false),
            missing(4, true),
            missing(5, false),
        ];
        assert_eq!(fits(all, &[1, 2], 2), [name(1), name(4)]);
        let all = vec![missing(4, true), missing(5, false)];
        assert_eq!(fits(all, &[1], 2), [name(4)], "but they count for others");
    }
}
