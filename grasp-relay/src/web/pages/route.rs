//! The pages below `/<npub>/<name>.git/`: one place that knows them all.

use grasp_core::Oid;

use super::collaboration::Collaboration;
use super::revision::{self, Revision};
use super::{
    Context, Made, PageError, Show, Version, Work, commit, file, log, refs, repository_page, tree,
};

/// A page of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// The page of the repository.
    Repository,
    /// Branches and tags, from a position on.
    Refs { skip: usize },
    /// A directory; the segments name the revision and the path.
    Tree { segments: Vec<String> },
    /// A file; a document as its source if `is_plain`.
    File {
        segments: Vec<String>,
        is_plain: bool,
    },
    /// The bytes of a file.
    Raw { segments: Vec<String> },
    /// Commits of a revision, from one on.
    Log {
        segments: Vec<String>,
        from: Option<Oid>,
    },
    /// A commit.
    Commit { id: Oid },
    /// A commit as a patch.
    Patch { id: Oid },
    /// Threads, feeds, and the servers that are in step.
    Collaboration(Collaboration),
}

/// What an address names, once its branch or commit was found.
pub(super) enum Subject {
    /// The repository as a whole.
    Repository,
    /// A revision, and the rest of the path.
    Revision(Revision, Vec<String>),
}

/// What the version of a page is read from.
pub(super) enum Reads {
    /// The refs of the repository alone.
    Refs,
    /// Served events, too. Pages with the same name have the same version.
    Events(String),
    /// More than that.
    More,
}

impl Route {
    /// Returns the name of the page in metrics.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Repository => "overview",
            Self::Refs { .. } => "refs",
            Self::Tree { .. } => "tree",
            Self::File { .. } => "file",
            Self::Raw { .. } => "raw",
            Self::Log { .. } => "log",
            Self::Commit { .. } => "commit",
            Self::Patch { .. } => "patch",
            Self::Collaboration(page) => page.name(),
        }
    }

    /// Returns what the version of the page is read from.
    pub(super) fn reads(&self) -> Reads {
        match self {
            Self::Repository => Reads::Events("overview".into()),
            Self::Collaboration(page) => page.reads(),
            _ => Reads::Refs,
        }
    }

    /// Returns the page that a path below a repository names; `None` if it names none.
    pub(super) fn parse(path: &str, query: &str, show: Show) -> Option<Self> {
        let (page, rest) = path.split_once('/').unwrap_or((path, ""));
        if page.is_empty() && rest.is_empty() {
            return Some(Self::Repository);
        }
        if show != Show::Full {
            return None;
        }
        let segments = revision::segments(rest)?;
        let has_path = segments.len() > 1;
        Some(match page {
            "refs" if segments.is_empty() => Self::Refs {
                skip: number(query, "skip"),
            },
            "tree" if !segments.is_empty() => Self::Tree { segments },
            "file" if has_path => Self::File {
                segments,
                is_plain: parameter(query, "plain").is_some(),
            },
            "raw" if has_path => Self::Raw { segments },
            "log" if !segments.is_empty() => Self::Log {
                segments,
                from: match parameter(query, "from") {
                    Some(from) => Some(from.parse().ok()?),
                    None => None,
                },
            },
            "commit" => match rest.strip_suffix(".patch") {
                Some(id) => Self::Patch {
                    id: id.parse().ok()?,
                },
                None => Self::Commit {
                    id: rest.parse().ok()?,
                },
            },
            _ => Self::Collaboration(Collaboration::parse(page, rest, query)?),
        })
    }

    /// Finds what the address names. Nothing that the repository does not show is found.
    pub(super) async fn find(&self, context: &Context<'_>) -> Result<Subject, PageError> {
        let (revision, rest) = match self {
            Self::Repository | Self::Refs { .. } | Self::Collaboration(_) => {
                return Ok(Subject::Repository);
            }
            Self::Tree { segments }
            | Self::File { segments, .. }
            | Self::Raw { segments }
            | Self::Log { segments, .. } => Revision::find(context, segments).await?,
            Self::Commit { id } | Self::Patch { id } => {
                (Revision::by_id(context, *id).await?, Vec::new())
            }
        };
        if let Self::Log { from, .. } = self {
            if !rest.is_empty() {
                return Err(PageError::NotFound);
            }
            if let Some(from) = from {
                Revision::by_id(context, *from).await?;
            }
        }
        Ok(Subject::Revision(revision, rest))
    }

    /// Returns what decides whether the page is the one that a client or the cache has. Reads rows, no objects.
    pub(super) async fn version(
        &self,
        context: &Context<'_>,
        subject: &Subject,
    ) -> Result<Version, PageError> {
        let Subject::Revision(revision, _) = subject else {
            return match self {
                Self::Repository => repository_page::version(context).await,
                Self::Collaboration(page) => page.version(context).await,
                _ => Ok(Version::of_view(&context.view)),
            };
        };
        let version = revision.version(&context.view);
        let is_costly = match self {
            // Every page of a log but the first is one of very many.
            Self::Log { from, .. } => version.is_costly || from.is_some(),
            // So is every page by the id of a commit.
            _ => version.is_costly,
        };
        Ok(Version {
            is_costly,
            ..version
        })
    }

    /// Makes the page.
    pub(super) async fn make(
        &self,
        context: &Context<'_>,
        subject: &Subject,
        work: &Work,
    ) -> Result<Made, PageError> {
        let (revision, path) = match (self, subject) {
            (_, Subject::Revision(revision, path)) => (revision, path),
            (Self::Collaboration(page), _) => return page.make(context, work).await,
            (Self::Refs { skip }, _) => {
                return Ok(Made::Page(refs::make(context, work, *skip).await?));
            }
            _ => return Ok(Made::Page(repository_page::make(context, work).await?)),
        };
        let page = match self {
            Self::Raw { .. } => {
                return file::raw(context, work, revision, path).await;
            }
            Self::Patch { .. } => {
                return Ok(Made::File(commit::patch(context, work, revision).await?));
            }
            Self::Tree { .. } => tree::make(context, work, revision, path).await?,
            Self::File { is_plain, .. } => {
                file::make(context, work, revision, path, *is_plain).await?
            }
            Self::Log { from, .. } => log::make(context, work, revision, *from).await?,
            _ => commit::make(context, work, revision).await?,
        };
        Ok(Made::Page(page))
    }
}

/// Returns the value of a parameter of a query; `None` without one.
pub(super) fn parameter(query: &str, name: &str) -> Option<String> {
    let mut pairs = url::form_urlencoded::parse(query.as_bytes());
    let (_, value) = pairs.find(|(key, _)| key == name)?;
    Some(value.into_owned())
}

fn number(query: &str, name: &str) -> usize {
    let value = parameter(query, name);
    value.and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_has_one_path() {
        let parse = |path: &str, query: &str| Route::parse(path, query, Show::Full);
        let segments = |path: &str| path.split('/').map(str::to_owned).collect::<Vec<_>>();
        let id = Oid::Sha1([0xaa; 20]);
        assert_eq!(parse("", ""), Some(Route::Repository));
        assert_eq!(parse("refs", "skip=200"), Some(Route::Refs { skip: 200 }));
        assert_eq!(parse("refs", "skip=-1"), Some(Route::Refs { skip: 0 }));
        let tree = Route::Tree {
            segments: segments("main/a b"),
        };
        assert_eq!(parse("tree/main/a%20b/", ""), Some(tree));
        let file = Route::File {
            segments: segments("main/x.md"),
            is_plain: true,
        };
        assert_eq!(parse("file/main/x.md", "plain"), Some(file));
        let log = Route::Log {
            segments: segments("main"),
            from: Some(id),
        };
        assert_eq!(parse("log/main", &format!("from={id}")), Some(log));
        assert_eq!(
            parse(&format!("commit/{id}"), ""),
            Some(Route::Commit { id })
        );
        let patch = Route::Patch { id };
        assert_eq!(parse(&format!("commit/{id}.patch"), ""), Some(patch));
        for nothing in [
            "config",
            "refs/x",
            "hooks/update",
            "tree",
            "tree/",
            "file/main",
            "raw/main",
            "commit/abc",
            "commit",
            "tree/main/../x",
            "file/main/%2e%2e/x",
            "log",
        ] {
            assert_eq!(parse(nothing, ""), None, "{nothing}");
        }
        assert_eq!(parse("log/main", "from=x"), None);
        assert_eq!(Route::parse("refs", "", Show::Basic), None);
        assert_eq!(Route::parse("", "", Show::Basic), Some(Route::Repository));
    }
}
