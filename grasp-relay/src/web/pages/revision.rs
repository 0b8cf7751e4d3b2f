//! Branches, tags and commits in addresses, and which commits a repository shows.
//!
//! Objects can be in a repository without being shown there: of tips that were replaced, or of pull requests. A commit is
//! shown if branches or tags reach it; one that only a pull request reaches is shown as proposed; all others are not found.

use std::sync::{Arc, Mutex, PoisonError};

use grasp_core::{Namespace, Oid, RefName, RepoId};
use grasp_purgatory::database::{Generation, View};
use grasp_purgatory::git::GitError;
use lru::LruCache;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::{Caching, Context, PageError, Version, Work};

/// Commits of one repository up to which they are remembered.
const MAX_COMMITS: usize = 1_000_000;

/// Bytes of an id with its line feed, in the list of git.
const BYTES_PER_LINE: usize = 41;

/// Bytes of all ids that are remembered.
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// The characters of a path that are escaped.
const ESCAPED: AsciiSet = NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'/');

/// Encodes a path, or the name of a branch, for an address.
pub(crate) fn encode(path: &str) -> String {
    utf8_percent_encode(path, &ESCAPED).to_string()
}

/// Decodes the segments of a path; `None` if it could lead elsewhere in any reading.
pub(super) fn segments(path: &str) -> Option<Vec<String>> {
    let mut segments = Vec::new();
    for segment in path.split('/') {
        let segment = percent_decode_str(segment).decode_utf8().ok()?;
        let is_bad = matches!(&*segment, "." | "..") || segment.contains(['/', '\n', '\0']);
        if is_bad {
            return None;
        }
        segments.push(segment.into_owned());
    }
    // A slash at the end names the same.
    if segments.last().is_some_and(String::is_empty) {
        segments.pop();
    }
    let has_gap = segments.iter().any(String::is_empty);
    (!has_gap).then_some(segments)
}

/// A commit as an address names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Revision {
    /// The branch, tag or id, as in the address but decoded.
    pub(super) name: String,
    /// The commit. A tag may name something else, which then has no pages.
    pub(super) commit: Oid,
    pub(super) belongs: Belongs,
}

/// Why a repository shows a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Belongs {
    /// The address names a branch or tag.
    Named,
    /// The address names a commit that branches or tags reach.
    Reached,
    /// The address names a commit that only a pull request reaches.
    Proposed,
}

impl Revision {
    /// Finds the revision that the segments of an address begin with: the longest branch or tag, or an id. Returns it with
    /// the rest.
    pub(super) async fn find(
        context: &Context<'_>,
        segments: &[String],
    ) -> Result<(Self, Vec<String>), PageError> {
        if let Some((name, commit, used)) = named(&context.view, segments) {
            let rest = segments.get(used..).unwrap_or_default().to_vec();
            let belongs = Belongs::Named;
            let revision = Self {
                name,
                commit,
                belongs,
            };
            return Ok((revision, rest));
        }
        let (first, rest) = segments.split_first().ok_or(PageError::NotFound)?;
        let commit = first.parse().map_err(|_| PageError::NotFound)?;
        Ok((Self::by_id(context, commit).await?, rest.to_vec()))
    }

    /// Returns a commit by its id, if the repository shows it.
    pub(super) async fn by_id(context: &Context<'_>, commit: Oid) -> Result<Self, PageError> {
        let belongs = belongs(context, None, commit).await?;
        Ok(Self {
            name: commit.to_string(),
            commit,
            belongs: belongs.ok_or(PageError::NotFound)?,
        })
    }

    /// Returns the version of a page that shows something at this revision.
    pub(super) fn version(&self, view: &View) -> Version {
        match self.belongs {
            Belongs::Named => Version::of_view(view),
            Belongs::Reached | Belongs::Proposed => Version {
                tag: format!("{}-{:?}", self.commit, self.belongs),
                caching: Caching::ForADay,
                is_costly: true,
            },
        }
    }

    /// Returns whether search engines may list the pages of this revision: those of branches.
    pub(super) fn is_named(&self) -> bool {
        self.belongs == Belongs::Named
    }
}

/// Returns the name of a branch or tag in addresses: without its namespace, unless a branch has the name of the tag.
pub(super) fn name_of(view: &View, name: &RefName) -> String {
    match name.namespace() {
        Namespace::Tag(tag) => {
            let branch = RefName::new(&format!("refs/heads/{tag}"));
            let is_taken = branch.is_ok_and(|branch| view.refs.refs.contains_key(&branch));
            if is_taken { name.as_str() } else { tag }.to_owned()
        }
        Namespace::Branch(branch) => branch.to_owned(),
        _ => name.as_str().to_owned(),
    }
}

/// Returns the longest branch or tag that segments begin with, its commit, and the number of segments. A branch is meant
/// before a tag of the same name, which `refs/tags/` before it names.
fn named(view: &View, segments: &[String]) -> Option<(String, Oid, usize)> {
    for used in (1..=segments.len().min(32)).rev() {
        let name = segments.get(..used)?.join("/");
        let whole = name.starts_with("refs/tags/").then_some("");
        for prefix in ["refs/heads/", "refs/tags/"].into_iter().chain(whole) {
            let full = RefName::new(&format!("{prefix}{name}")).ok();
            let target = full.and_then(|full| view.refs.refs.get(&full));
            if let Some(target) = target {
                return Some((name, target.peeled.unwrap_or(target.oid), used));
            }
        }
    }
    None
}

/// The commits that branches and tags of a repository reach, and those that only its pull requests reach, sorted.
#[derive(Debug, Default)]
struct Reach {
    own: Vec<Oid>,
    proposed: Vec<Oid>,
}

impl Reach {
    fn memory(&self) -> usize {
        (self.own.len() + self.proposed.len()) * size_of::<Oid>() + 256
    }

    fn of(&self, commit: &Oid) -> Option<Belongs> {
        if self.own.binary_search(commit).is_ok() {
            return Some(Belongs::Reached);
        }
        let is_proposed = self.proposed.binary_search(commit).is_ok();
        is_proposed.then_some(Belongs::Proposed)
    }
}

/// What was found out about the commits of repositories, by the generation of their refs.
pub(super) struct ReachCache(Mutex<Reaches>);

struct Reaches {
    by_repo: LruCache<RepoId, (Generation, Arc<Reach>)>,
    bytes: usize,
}

impl ReachCache {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Reaches {
            by_repo: LruCache::unbounded(),
            bytes: 0,
        }))
    }

    fn get(&self, repo: &RepoId, generation: Generation) -> Option<Arc<Reach>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (of, reach) = all.by_repo.get(repo)?;
        (*of == generation).then(|| Arc::clone(reach))
    }

    fn insert(&self, repo: RepoId, generation: Generation, reach: Arc<Reach>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.bytes += reach.memory();
        if let Some((_, (_, replaced))) = all.by_repo.push(repo, (generation, reach)) {
            all.bytes -= replaced.memory();
        }
        while all.bytes > MAX_BYTES {
            let Some((_, (_, oldest))) = all.by_repo.pop_lru() else {
                break;
            };
            all.bytes -= oldest.memory();
        }
    }
}

/// Returns why the repository shows a commit; `None` if it does not. Without `work`, a slot is taken if its commits have to
/// be listed.
pub(super) async fn belongs(
    context: &Context<'_>,
    work: Option<&Work>,
    commit: Oid,
) -> Result<Option<Belongs>, PageError> {
    let view = &context.view;
    let tips = view.refs.refs.iter();
    let mut is_proposed = false;
    for (name, target) in tips {
        if target.peeled.unwrap_or(target.oid) != commit {
            continue;
        }
        match name.namespace() {
            Namespace::Branch(_) | Namespace::Tag(_) => return Ok(Some(Belongs::Reached)),
            _ => is_proposed = true,
        }
    }
    let repo = &context.request.repo;
    let known = context.site.reaches.get(repo, view.generation);
    let reach = match known {
        Some(reach) => reach,
        None => list_once(context, work).await?,
    };
    let tip = is_proposed.then_some(Belongs::Proposed);
    Ok(reach.of(&commit).or(tip))
}

/// Lists the commits of a repository, unless another request has done so while this one waited for its slot: after a push,
/// many visitors come at once.
async fn list_once(context: &Context<'_>, work: Option<&Work>) -> Result<Arc<Reach>, PageError> {
    let Context { site, request, .. } = context;
    let generation = context.view.generation;
    let work = match work {
        Some(work) => work.clone(),
        None => site.begin(&request.visitor).await?,
    };
    if let Some(reach) = site.reaches.get(&request.repo, generation) {
        return Ok(reach);
    }
    let reach = Arc::new(walk(context, &work).await?);
    let repo = request.repo.clone();
    site.reaches.insert(repo, generation, Arc::clone(&reach));
    Ok(reach)
}

/// Lists the commits of a repository. One with too many has pages of its branches and tags only.
async fn walk(context: &Context<'_>, work: &Work) -> Result<Reach, PageError> {
    let own = ["--branches", "--tags"];
    let proposed = ["--glob=refs/nostr/*", "--not", "--branches", "--tags"];
    let request = context.request;
    let mut lists = [Vec::new(), Vec::new()];
    for (list, arguments) in lists.iter_mut().zip([&own[..], &proposed[..]]) {
        let max_bytes = MAX_COMMITS * BYTES_PER_LINE;
        let (repos, repo) = (&request.repos, &request.repo);
        let listed = repos.run_for_page(repo, work, "rev-list", arguments, max_bytes);
        let output = match listed.await {
            Ok((output, false)) => output,
            Ok((_, true)) | Err(GitError::TooExpensive { .. } | GitError::Timeout { .. }) => {
                return Ok(Reach::default());
            }
            Err(error) => return Err(error.into()),
        };
        *list = work.run(move || parse_ids(&output)).await?;
    }
    let [own, proposed] = lists;
    Ok(Reach { own, proposed })
}

fn parse_ids(output: &[u8]) -> Vec<Oid> {
    let text = String::from_utf8_lossy(output);
    let mut ids: Vec<Oid> = text.lines().filter_map(|line| line.parse().ok()).collect();
    ids.sort_unstable();
    ids.shrink_to_fit();
    ids
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use grasp_purgatory::git::{Refs, Target};

    use super::*;

    fn view(names: &[&str]) -> View {
        let refs: BTreeMap<_, _> = names
            .iter()
            .zip(1..)
            .map(|(name, n)| {
                let oid = Oid::Sha1([n; 20]);
                (RefName::new(name).unwrap(), Target { oid, peeled: None })
            })
            .collect();
        let refs = Refs {
            refs,
            ..Refs::default()
        };
        View {
            refs: Arc::new(refs),
            ..View::default()
        }
    }

    #[test]
    fn the_longest_branch_or_tag_is_meant() {
        let view = view(&[
            "refs/heads/a",
            "refs/heads/b/c",
            "refs/tags/v1",
            "refs/nostr/x",
        ]);
        let found = |path: &str| {
            let segments = segments(path).unwrap();
            named(&view, &segments).map(|(name, _, used)| (name, used))
        };
        assert_eq!(found("a/src/lib.rs"), Some(("a".into(), 1)));
        assert_eq!(found("b/c"), Some(("b/c".into(), 2)));
        assert_eq!(found("v1/x"), Some(("v1".into(), 1)));
        for nothing in ["b", "x", "nostr/x", "refs/heads/a"] {
            assert_eq!(found(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn a_tag_with_the_name_of_a_branch_is_named_whole() {
        let view = view(&["refs/heads/v1", "refs/tags/v1", "refs/tags/v2"]);
        let target = |name: &str| view.refs.refs[&RefName::new(name).unwrap()].oid;
        for (path, full, name) in [
            ("v1", "refs/heads/v1", "v1"),
            ("refs/tags/v1/x", "refs/tags/v1", "refs/tags/v1"),
            ("v2", "refs/tags/v2", "v2"),
        ] {
            let found = named(&view, &segments(path).unwrap());
            let found = found.map(|(name, oid, _)| (name, oid));
            assert_eq!(found, Some((name.to_owned(), target(full))), "{path}");
            assert_eq!(name_of(&view, &RefName::new(full).unwrap()), name);
        }
        assert_eq!(named(&view, &segments("refs/heads/v1").unwrap()), None);
    }

    #[test]
    fn a_path_that_could_lead_elsewhere_is_none() {
        assert_eq!(
            segments("a%20b/%C3%BC/"),
            Some(vec!["a b".into(), "ü".into()])
        );
        assert_eq!(segments(""), Some(vec![]));
        for bad in [
            "..", "a/../b", "a//b", "%2e%2e/x", "a%2fb", "a%0ab", "a%00", "%ff", "/a",
        ] {
            assert_eq!(segments(bad), None, "{bad}");
        }
        assert_eq!(encode("a b/ü?#%"), "a%20b/%C3%BC%3F%23%25");
    }

    #[test]
    fn commits_of_many_repositories_take_no_more_than_the_bound() {
        let cache = ReachCache::new();
        let owner = nostr::key::PublicKey::from_byte_array([1; 32]);
        for n in 0..200 {
            let own = vec![Oid::ZERO; 100_000];
            let reach = Arc::new(Reach {
                own,
                ..Reach::default()
            });
            let repo = RepoId::new(owner, n.to_string().parse().unwrap());
            cache.insert(repo, Generation(1), reach);
            assert!(cache.0.lock().unwrap().bytes <= MAX_BYTES);
        }
        let repo = |n: u32| RepoId::new(owner, n.to_string().parse().unwrap());
        assert!(cache.get(&repo(199), Generation(1)).is_some());
        assert!(cache.get(&repo(199), Generation(2)).is_none());
        assert!(cache.get(&repo(0), Generation(1)).is_none());
    }
}
