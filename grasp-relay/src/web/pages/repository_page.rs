//! The page of a repository: what it is, how to clone it, what is in it, and whose it is.

use std::collections::BTreeSet;

use bitcoin_hashes::{HashEngine as _, sha256};
use grasp_core::nip34::Announcement;
use grasp_core::service::npub;
use grasp_core::{Namespace, RefName};
use maud::{Markup, html};
use nostr::key::PublicKey;

use super::revision::{Belongs, Revision, encode};
use super::tree::{self, Entry};
use super::{Context, Page, PageError, Show, Tab, Version, Work, about, content, log};
use crate::web::names::Names;
use crate::web::threads::{Counts, ThreadKind};
use crate::web::{self, RepositoryPage, npub_start, other_servers, shown};

/// Maintainers that are named.
const MAX_MAINTAINERS: usize = 32;

/// What the page shows beside git data.
#[derive(Clone, Debug, Default)]
struct Facts {
    announcement: Option<Announcement>,
    issues: Counts,
    /// Pull requests and patches.
    proposals: Counts,
}

impl Facts {
    async fn read(context: &Context<'_>) -> Result<Self, PageError> {
        let reader = context.threads().await?;
        Ok(Self {
            announcement: context.announcement().await?,
            issues: reader.list(ThreadKind::Issues).await?.counts(),
            proposals: reader.list(ThreadKind::Pulls).await?.counts(),
        })
    }
}

/// Returns the keys that maintain the repository, its owner among them.
fn maintainers(context: &Context<'_>) -> BTreeSet<PublicKey> {
    let mut keys = context.view.maintainers.clone();
    keys.insert(context.request.address.owner);
    keys.into_iter().take(MAX_MAINTAINERS).collect()
}

/// Returns the version of the page, which follows from the refs, the newest announcement, the threads and the names.
pub(super) async fn version(context: &Context<'_>) -> Result<Version, PageError> {
    let announcement = context.announcement().await?;
    let people = people(context, announcement.as_ref());
    let reader = context.threads().await?;
    let mut engine = sha256::HashEngine::default();
    for key in &context.view.maintainers {
        engine.input(key.as_bytes());
    }
    for id in announcement.iter().map(|it| it.version.id) {
        engine.input(id.as_bytes());
    }
    for id in reader.name_sources(people.into_iter().collect()).await? {
        engine.input(id.as_bytes());
    }
    for kind in [ThreadKind::Issues, ThreadKind::Pulls] {
        engine.input(reader.version(kind).await?.as_bytes());
    }
    let hash = engine.finalize().to_string();
    let tag = hash.get(..24).unwrap_or_default();
    let generation = context.view.generation.0;
    Ok(Version::revalidated(format!("g{generation}-{tag}")))
}

pub(super) async fn make(context: &Context<'_>, work: &Work) -> Result<Page, PageError> {
    if context.site.settings.show == Show::Basic {
        return basic(context).await;
    }
    let clock = &context.site.host.clock;
    let began = clock.now().mono;
    let facts = Facts::read(context).await?;
    work.charge(clock.now().mono - began);
    let announcement = facts.announcement.clone();
    let refs = &context.view.refs;
    let head = head(context);
    let default = head.and_then(|head| Some((head, refs.refs.get(head)?)));
    let revision = default.map(|(head, target)| Revision {
        name: head.as_str().trim_start_matches("refs/heads/").to_owned(),
        commit: target.peeled.unwrap_or(target.oid),
        belongs: Belongs::Named,
    });
    let code = match &revision {
        Some(revision) => Some(Code::read(context, work, revision).await?),
        None => None,
    };
    let people = people(context, announcement.as_ref());
    let names = context.threads().await?;
    let names = names.names(people.iter().copied().collect()).await?;
    let title = announcement.as_ref().and_then(|it| it.name.as_deref());
    let title = title.filter(|name| !name.trim().is_empty());
    let title = shown(title.unwrap_or(context.request.address.identifier.as_str()));
    let content = html! {
        h1 { bdi { (title) } }
        @if let Some(description) = announcement.as_ref().and_then(|it| it.description.as_deref()) {
            p dir="auto" { (shown(description)) }
        }
        (clone_box(context))
        @if let Some(announcement) = &announcement { (in_step(context, announcement)) }
        div class="cols" {
            div { (main_part(context, revision.as_ref(), code.as_ref())) }
            aside aria-label="About" {
                (numbers(context, &facts))
                (maintainer_list(context, &people, &names))
                @if let Some(code) = &code { (about::licences(&code.top.licences)) (about::languages(&code.languages)) }
                @if let Some(announcement) = &announcement { (other_servers(context.service(), announcement)) }
            }
        }
    };
    let feeds = vec![
        context.feed("commits", "commits"),
        context.feed("releases", "releases"),
    ];
    Ok(context.page("", Tab::Code, content).with_feeds(feeds))
}

/// Returns the default branch, if it exists.
fn head<'a>(context: &'a Context<'_>) -> Option<&'a RefName> {
    let refs = &context.view.refs;
    Some(&refs.head).filter(|head| refs.refs.contains_key(head))
}

/// Makes the short page.
async fn basic(context: &Context<'_>) -> Result<Page, PageError> {
    let announcement = context.announcement().await?;
    let (branches, tags) = count(context);
    let page_of = RepositoryPage {
        repo: &context.request.address,
        announcement: announcement.as_ref(),
        head: head(context),
        branches,
        tags,
    };
    let site = context.site;
    let client = &site.settings.web_client;
    let service = context.service();
    let page = web::repository(&site.frame, service, &page_of, site.secure, client);
    Ok(page.at(context.canonical()))
}

/// What the page shows of the newest commit of the default branch.
struct Code {
    newest: Option<log::LogEntry>,
    top: TopFiles,
    languages: Vec<about::Language>,
}

/// What it shows of the files at the top.
struct TopFiles {
    entries: Option<Vec<Entry>>,
    readme: Option<(String, Markup)>,
    licences: Vec<&'static str>,
}

impl Code {
    /// Reads all parts at the same time: each takes a process of git.
    async fn read(
        context: &Context<'_>,
        work: &Work,
        revision: &Revision,
    ) -> Result<Self, PageError> {
        let (newest, top, languages) = tokio::try_join!(
            newest(context, work, revision),
            TopFiles::read(context, work, revision),
            about::read_languages(context, work, revision.commit),
        )?;
        Ok(Self {
            newest,
            top,
            languages,
        })
    }
}

/// Returns the newest commit, unless it takes too long to read.
async fn newest(
    context: &Context<'_>,
    work: &Work,
    revision: &Revision,
) -> Result<Option<log::LogEntry>, PageError> {
    match log::list(context, work, revision.commit, 1).await {
        Ok(list) => Ok(list.commits.into_iter().next()),
        Err(PageError::Git(error)) if error.is_too_expensive() => Ok(None),
        Err(error) => Err(error),
    }
}

impl TopFiles {
    async fn read(
        context: &Context<'_>,
        work: &Work,
        revision: &Revision,
    ) -> Result<Self, PageError> {
        let request = context.request;
        let mut reader = request.repos.read_objects(&request.repo, work).await?;
        let name = tree::object_name(revision, &[]);
        let entries = tree::read(&mut reader, &name, &revision.commit).await?;
        let list = entries.as_deref().unwrap_or_default();
        let mut readme = None;
        if let Some(name) = tree::readme(list) {
            let path = [name.to_owned()];
            let object = tree::object_name(revision, &path);
            let read = reader.content(&object, content::MAX_DOCUMENT).await?;
            readme = read.map(|(_, text)| (path, text));
        }
        let mut licences = Vec::new();
        for name in about::licence_files(list) {
            let object = tree::object_name(revision, &[name.to_owned()]);
            let read = reader.content(&object, content::MAX_DOCUMENT).await?;
            let (_, text) = read.unzip();
            let text = text.unwrap_or_default();
            let licence = about::identify(&String::from_utf8_lossy(&text));
            licences.extend(licence.filter(|licence| !licences.contains(licence)));
        }
        reader.finish().await?;
        let readme = match readme {
            Some((path, text)) => {
                let document = tree::document(context, work, revision, &path, &text).await;
                let [name] = path;
                Some((name, document))
            }
            None => None,
        };
        Ok(Self {
            entries,
            readme,
            licences,
        })
    }
}

fn main_part(context: &Context<'_>, revision: Option<&Revision>, code: Option<&Code>) -> Markup {
    let (Some(revision), Some(code)) = (revision, code) else {
        return html! {
            h2 { "Nothing is here yet" }
            p { "This repository is announced, and nothing was pushed to its default branch. With the " code { "grasp" } " command, in a working copy:" }
            pre { "grasp push --server " (scheme(context)) "://" (context.service()) }
        };
    };
    let base = context.base();
    html! {
        h2 { "Files at " a href=(format!("{base}/tree/{}", encode(&revision.name))) { bdi { (shown(&revision.name)) } } }
        @if let Some(newest) = &code.newest {
            ol class="log newest" aria-label="Newest commit" { (log::item(&base, newest)) }
        }
        @match &code.top.entries {
            Some(entries) => { (tree::table(&base, revision, &[], entries)) }
            None => { p { "This directory is too large to be shown." } }
        }
        @if let Some((name, document)) = &code.top.readme {
            h2 id="readme" { bdi { (shown(name)) } }
            (document)
        }
    }
}

fn scheme(context: &Context<'_>) -> &'static str {
    if context.site.secure { "https" } else { "http" }
}

/// Returns whether the announced servers are in step. A picture tells, which changes while the page stays the same.
fn in_step(context: &Context<'_>, announcement: &Announcement) -> Markup {
    let base = context.base();
    html! {
        @if announcement.clone.len() > 1 {
            p {
                a href=(format!("{base}/servers")) {
                    img class="badge" src=(format!("{base}/badge.svg")) height="20" alt="The servers that have this repository, and whether they are in step";
                }
            }
        }
    }
}

fn clone_box(context: &Context<'_>) -> Markup {
    let service = context.service();
    let repo = &context.request.address;
    let nostr = format!("nostr://{}", web::nostr_path(service, repo));
    html! {
        dl class="box clone" {
            div { dt { "Clone" } dd { pre { "git clone " (service.repo_url(repo, context.site.secure)) } } }
            div { dt { "or with a client that speaks nostr, from every server" } dd { pre { "git clone " (nostr) } } }
        }
    }
}

fn count(context: &Context<'_>) -> (usize, usize) {
    let (mut branches, mut tags) = (0, 0);
    for name in context.view.refs.refs.keys() {
        match name.namespace() {
            Namespace::Branch(_) => branches += 1,
            Namespace::Tag(_) => tags += 1,
            _ => {}
        }
    }
    (branches, tags)
}

fn numbers(context: &Context<'_>, facts: &Facts) -> Markup {
    let (branches, tags) = count(context);
    let base = context.base();
    let client = &context.site.settings.web_client;
    let host = client
        .split_once("://")
        .map_or(client.as_str(), |(_, host)| host);
    html! {
        h2 { "Contents" }
        ul {
            li { a href=(format!("{base}/refs")) {
                (web::format_count(branches as u64, "branch", "branches")) ", " (web::format_count(tags as u64, "tag", "tags"))
            } }
            li {
                a href=(format!("{base}/issues")) { (opened(facts.issues, "issue", "issues")) }
                (closed(facts.issues))
            }
            li {
                a href=(format!("{base}/pulls")) {
                    (opened(facts.proposals, "pull request or patch", "pull requests and patches"))
                }
                (closed(facts.proposals))
            }
            li { a href=(context.client_address()) rel="noopener" { "Discuss at " (host) } }
        }
    }
}

/// Returns the number of open threads.
fn opened(counts: Counts, one: &str, many: &str) -> String {
    let more = if counts.is_cut { "at least " } else { "" };
    let noun = if counts.open == 1 { one } else { many };
    format!("{more}{} open {noun}", counts.open)
}

fn closed(counts: Counts) -> Markup {
    html! { @if counts.closed > 0 { span class="small" { ", " (counts.closed) " closed" } } }
}

/// Returns the people that are named, the owner first.
fn people(context: &Context<'_>, announcement: Option<&Announcement>) -> Vec<PublicKey> {
    let mut keys = maintainers(context);
    if let Some(announcement) = announcement {
        keys.extend(announcement.maintainer_list.listed.iter().copied());
    }
    let owner = context.request.address.owner;
    let others = keys.into_iter().filter(|key| *key != owner);
    let all = [owner].into_iter().chain(others);
    all.take(MAX_MAINTAINERS).collect()
}

fn maintainer_list(context: &Context<'_>, people: &[PublicKey], names: &Names) -> Markup {
    let owner = context.request.address.owner;
    html! {
        h2 { "Maintainers" }
        ul {
            @for key in people {
                li {
                    a href=(format!("{}{}", context.site.frame.root(), npub(key))) title=(npub(key)) {
                        @if let Some(name) = names.get(key) { bdi { (shown(name)) } " " }
                        code { (npub_start(key)) }
                    }
                    @if *key == owner { span class="small" { " owner" } }
                    @else if !context.view.maintainers.contains(key) { span class="small" { " named, has not agreed" } }
                }
            }
        }
    }
}
