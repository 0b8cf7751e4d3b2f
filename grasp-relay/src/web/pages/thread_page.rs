//! The page of an issue, a patch or a pull request.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use grasp_core::threads::{Check, Thread};
use maud::{Markup, PreEscaped, html};
use nostr::event::EventId;
use nostr::key::PublicKey;

use super::changes::{self, Proposal};
use super::revision::encode;
use super::{Context, Page, PageError, Tab, Work, log};
use crate::web::render::{Job, Place};
use crate::web::threads::{self, MailPatch, ThreadKind, ThreadPage};
use crate::web::{diff, format_count};

/// Time that the texts of one page may take to render. Those after it are shown as they are.
const MAX_RENDERING: Duration = Duration::from_secs(3);

/// Bytes of rendered texts on one page.
const MAX_RENDERED: usize = 1024 * 1024;

/// Makes the page.
pub(super) async fn make(
    context: &Context<'_>,
    work: &Work,
    kind: ThreadKind,
    id: EventId,
) -> Result<Page, PageError> {
    let clock = &context.site.host.clock;
    let began = clock.now().mono;
    let reader = context.threads().await?;
    let thread = reader.thread(id, kind).await?.ok_or(PageError::NotFound)?;
    let checks = match thread.tip() {
        Some(tip) => reader.checks(&tip.commit).await?,
        None => Vec::new(),
    };
    let names = reader.names(people(&thread, &checks)).await?;
    work.charge(clock.now().mono - began);
    let proposal = match thread.tip() {
        Some(tip) => {
            let target = thread.root.target.as_deref();
            match changes::proposal(context, work, tip, target).await {
                // The thread can be read without them.
                Err(PageError::Git(error)) if error.is_too_expensive() => None,
                proposal => proposal?,
            }
        }
        None => None,
    };
    let changes = match (proposal, thread.tip()) {
        (Some(proposal), Some(tip)) => {
            let base = context.base();
            let tip = tip.commit.to_string();
            let markup = work.run(move || changed(&proposal, &base, &tip));
            Some(markup.await?)
        }
        _ => None,
    };
    let rendered = rendered(context, work, &thread).await;
    let base = context.base();
    let list = format!("{base}/{}", kind.path());
    let service = context.service();
    let content = threads::thread(&ThreadPage {
        thread: &thread,
        names: &names,
        checks: &checks,
        base: &base,
        list: &list,
        clone: &service.repo_url(&context.request.address, context.site.secure),
        web_client: &context.site.settings.web_client,
        rendered: &rendered,
        changes,
    });
    Ok(context.page(&thread.summary.title, Tab::of(kind), content))
}

/// Returns the people whose names the page shows.
fn people(thread: &Thread, checks: &[Check]) -> BTreeSet<PublicKey> {
    let mut people = BTreeSet::from([thread.root.author]);
    people.extend(thread.summary.change.map(|change| change.by));
    people.extend(thread.cover.as_ref().map(|note| note.author));
    people.extend(checks.iter().map(|check| check.by));
    people.extend(thread.patches.iter().map(|note| note.author));
    people.extend(thread.comments.shown.iter().map(|comment| comment.author));
    people
}

/// Renders the texts of a thread, from its beginning. What fails or comes too late is left out.
async fn rendered(
    context: &Context<'_>,
    work: &Work,
    thread: &Thread,
) -> BTreeMap<EventId, Markup> {
    let mut texts = vec![(thread.root.id, &thread.root.text)];
    texts.extend(
        thread
            .cover
            .as_ref()
            .map(|note| (note.version.id, &note.text)),
    );
    for comment in &thread.comments.shown {
        texts.push((comment.version.id, &comment.text));
    }
    let head = context.view.refs.head.as_str();
    let (base, rev) = (
        context.base(),
        encode(head.trim_start_matches("refs/heads/")),
    );
    let place = Place {
        base: &base,
        rev: &rev,
        directory: "",
    };
    let clock = &context.site.host.clock;
    let began = clock.now().mono;
    let mut bytes = 0;
    let mut rendered = BTreeMap::new();
    for (id, text) in texts {
        if clock.now().mono - began > MAX_RENDERING || bytes > MAX_RENDERED {
            break;
        }
        if MailPatch::parse(text).is_some() {
            continue;
        }
        let job = Job::Note { place, text };
        if let Some(html) = context.site.renderer.render(&job, work).await {
            bytes += html.len();
            rendered.insert(id, PreEscaped(html));
        }
    }
    rendered
}

/// Returns the commits and the changes of a pull request.
fn changed(proposal: &Proposal, base: &str, tip: &str) -> Markup {
    let Proposal { commits, diff, .. } = proposal;
    html! {
        h2 id="commits" {
            (format_count(commits.len() as u64, "commit", "commits")) @if proposal.has_more { " and more" }
        }
        @if commits.is_empty() && proposal.is_merged { p { "All that it proposes is in its target branch." } }
        @if proposal.base.is_none() { p { "It has no history in common with its target branch." } }
        ol class="log" { @for commit in commits { (log::item(base, commit)) } }
        @if !diff.files.is_empty() {
            h2 id="changes" { "Changes" }
            (diff::summary(diff, "f"))
            (diff::markup(diff, "f", Some(&format!("{base}/file/{tip}"))))
            @if diff.is_cut { p { "There is more; fetch the pull request to see the rest." } }
        }
    }
}
