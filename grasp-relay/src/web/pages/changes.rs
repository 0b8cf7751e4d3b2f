//! What lies between two commits: their difference, and what a pull request would bring.

use grasp_core::threads::Tip;
use grasp_core::{Oid, RefName};
use grasp_purgatory::git::GitError;

use super::log::{self, LogEntries, LogEntry};
use super::revision::{self, Belongs};
use super::{Context, PageError, Work};
use crate::web::diff::Diff;

/// Bytes of a difference.
const MAX_BYTES: usize = 1024 * 1024;

/// Commits of a pull request that are listed.
const MAX_COMMITS: usize = 100;

/// Bytes of the name of a commit.
const MAX_NAME: usize = 256;

/// What a pull request proposes, as far as this server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Proposal {
    /// The branch or commit that it is compared with; none if they have no history in common.
    pub(super) base: Option<Oid>,
    /// The branches and tags of the repository have its commit.
    pub(super) is_merged: bool,
    /// Its commits, the newest first.
    pub(super) commits: Vec<LogEntry>,
    /// It has more than those.
    pub(super) has_more: bool,
    pub(super) diff: Diff,
}

/// Reads what a pull request proposes; `None` if the repository does not show its commit.
pub(super) async fn proposal(
    context: &Context<'_>,
    work: &Work,
    tip: &Tip,
    target: Option<&str>,
) -> Result<Option<Proposal>, PageError> {
    let Some(belongs) = revision::belongs(context, Some(work), tip.commit).await? else {
        return Ok(None);
    };
    let base = base_of(context, work, tip, target).await?;
    let LogEntries { commits, is_cut } =
        log::list_since(context, work, base, tip.commit, MAX_COMMITS + 1).await?;
    let has_more = is_cut || commits.len() > MAX_COMMITS;
    let diff = match base {
        Some(base) => diff(context, work, Some(base), tip.commit).await?,
        None => Diff::default(),
    };
    Ok(Some(Proposal {
        base,
        is_merged: belongs == Belongs::Reached,
        commits: commits.into_iter().take(MAX_COMMITS).collect(),
        has_more,
        diff,
    }))
}

/// Returns the commit where a pull request begins: the one that its author named, or else the one where it left its target.
async fn base_of(
    context: &Context<'_>,
    work: &Work,
    tip: &Tip,
    target: Option<&str>,
) -> Result<Option<Oid>, PageError> {
    // An author can name any commit; one that the repository does not show is not shown by way of a difference either.
    if let Some(named) = tip.merge_base.filter(|named| *named != tip.commit) {
        if revision::belongs(context, Some(work), named)
            .await?
            .is_some()
        {
            let base = merge_base(context, work, named, tip.commit).await?;
            if base.is_some() {
                return Ok(base);
            }
        }
    }
    match target_commit(context, target) {
        Some(target) => merge_base(context, work, target, tip.commit).await,
        None => Ok(None),
    }
}

/// Returns the commit of a branch; of the default branch if there is no such branch.
fn target_commit(context: &Context<'_>, branch: Option<&str>) -> Option<Oid> {
    let refs = &context.view.refs;
    let branch = branch.and_then(|branch| {
        let branch = branch.trim_start_matches("refs/heads/");
        RefName::new(&format!("refs/heads/{branch}")).ok()
    });
    let named = branch.and_then(|branch| refs.refs.get(&branch));
    let target = named.or_else(|| refs.refs.get(&refs.head))?;
    Some(target.peeled.unwrap_or(target.oid))
}

/// Returns the best commit that two others have in common, if there is one.
async fn merge_base(
    context: &Context<'_>,
    work: &Work,
    one: Oid,
    other: Oid,
) -> Result<Option<Oid>, PageError> {
    let request = context.request;
    let arguments = [one.to_string(), other.to_string()];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (repos, repo) = (&request.repos, &request.repo);
    match repos
        .run_for_page(repo, work, "merge-base", &arguments, MAX_NAME)
        .await
    {
        Ok((output, _)) => Ok(String::from_utf8_lossy(&output).trim().parse().ok()),
        // Git fails in silence if they have none.
        Err(GitError::Failed { said, .. }) if said.is_empty() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads the difference of a commit to an older one; without one everything is new. What takes too long is cut.
pub(super) async fn diff(
    context: &Context<'_>,
    work: &Work,
    older: Option<Oid>,
    commit: Oid,
) -> Result<Diff, PageError> {
    let request = context.request;
    let older = older.map(|older| older.to_string());
    let commit = commit.to_string();
    let mut arguments = vec![
        "-r",
        "-p",
        "-M",
        "-l200",
        "--root",
        "--no-commit-id",
        "--no-color",
        "--no-ext-diff",
        "--no-textconv",
        "--src-prefix=a/",
        "--dst-prefix=b/",
    ];
    arguments.extend(older.as_deref());
    arguments.push(&commit);
    let (repos, repo) = (&request.repos, &request.repo);
    let made = repos.run_for_page(repo, work, "diff-tree", &arguments, MAX_BYTES);
    let (output, is_cut) = match made.await {
        Err(error) if error.is_too_expensive() => (Vec::new(), true),
        made => made?,
    };
    let parsed = work.run(move || Diff::parse(&String::from_utf8_lossy(&output), is_cut));
    Ok(parsed.await?)
}
