//! The page of a repository.

use axum::response::{Html, IntoResponse, Response};
use grasp_core::nip34::Announcement;
use grasp_core::{Namespace, RefName, RepoId, kinds};
use nostr::filter::Filter;

use super::{GitHttp, HttpError};
use crate::web::{self, RepositoryPage};

impl GitHttp {
    pub(super) async fn page(&self, repo: &RepoId) -> Result<Response, HttpError> {
        let repos = self.keeper.repos();
        let refs = repos.refs(repo).await?;
        let head = repos.head(repo).await?.filter(|head| refs.contains_key(head));
        let is = |wanted: fn(Namespace<'_>) -> bool| {
            refs.keys().filter(|name| wanted(RefName::namespace(name))).count()
        };
        let announcement = self.announcement(repo).await?;
        let page = RepositoryPage {
            repo,
            announcement: announcement.as_ref(),
            head: head.as_ref(),
            branches: is(|place| matches!(place, Namespace::Branch(_))),
            tags: is(|place| matches!(place, Namespace::Tag(_))),
        };
        let service = &self.keeper.policy().service;
        Ok(Html(web::repository(service, &page, self.limits.secure)).into_response())
    }

    /// The served announcement.
    async fn announcement(&self, repo: &RepoId) -> Result<Option<Announcement>, HttpError> {
        let filter = Filter::new()
            .kind(kinds::ANNOUNCEMENT)
            .author(repo.owner)
            .identifier(repo.identifier.as_str())
            .limit(1);
        let found = self.events(filter).await?;
        Ok(found.first().and_then(|event| Announcement::parse(event).ok()))
    }
}
