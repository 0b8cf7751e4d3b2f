//! The operations of the soak.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use grasp_tests::{Author, Convergence, ServerClient, Workdir};
use nostr::event::Event;
use nostr::types::Timestamp;

use crate::relay::Relay;
use crate::server::Server;

const MAIN: &str = "refs/heads/main";
/// Maximum of repositories; after that, operations use those that there are.
const MAX_REPOSITORIES: usize = 40;

/// A repository and the refs that its owner signed.
struct Project {
    owner: Author,
    name: String,
    work: Workdir,
    refs: BTreeMap<String, String>,
    /// The time of its newest state: each must be later than the one before.
    signed: u64,
}

/// Random operations on three servers.
pub(crate) struct Workload {
    projects: Vec<Project>,
    authors: Vec<Author>,
    threads: Vec<(Author, Event)>,
    relays: [Option<Relay>; 3],
    random: u64,
    counts: BTreeMap<&'static str, usize>,
    /// Restarts: the share of the run after which, the server, and whether it stops gracefully.
    restarts: Vec<(f64, usize, bool)>,
}

impl Workload {
    pub(crate) async fn start(servers: &[Server; 3]) -> Self {
        let mut workload = Self {
            projects: Vec::new(),
            authors: (0..20).map(|_| Author::new()).collect(),
            threads: Vec::new(),
            relays: [None, None, None],
            random: 7,
            counts: BTreeMap::new(),
            restarts: vec![
                (0.2, 1, true),
                (0.3, 2, false),
                (0.4, 0, false),
                (0.5, 0, true),
            ],
        };
        for _ in 0..5 {
            workload.announce(servers).await;
        }
        workload
    }

    /// Executes one random operation, and the restart that is due.
    pub(crate) async fn step(&mut self, servers: &mut [Server; 3], share: f64) {
        if self.restarts.first().is_some_and(|(due, ..)| share >= *due) {
            let (_, which, is_graceful) = self.restarts.remove(0);
            self.relays[which] = None;
            servers[which].restart(is_graceful);
            self.count(if is_graceful { "restarts" } else { "kills" });
        }
        match self.random_below(100) {
            0..=1 if self.projects.len() < MAX_REPOSITORIES => self.announce(servers).await,
            0..=9 => self.push(servers).await,
            10..=13 => self.propose(servers).await,
            14..=33 => self.issue(servers).await,
            34..=95 => self.comment(servers).await,
            _ => self.delete(servers).await,
        }
    }

    pub(crate) fn summary(&self) -> String {
        let counts = self
            .counts
            .iter()
            .map(|(what, count)| format!("{count} {what}"));
        counts.collect::<Vec<_>>().join(", ")
    }

    async fn announce(&mut self, servers: &[Server; 3]) {
        let owner = Author::new();
        let name = format!("project-{}", self.projects.len());
        let services = servers.each_ref().map(Server::service);
        let announcement = owner.announce_on(&name, &services);
        let to = self.random_below(3);
        if self.publish(servers, to, &announcement).await {
            let work = Workdir::init().await;
            let refs = BTreeMap::new();
            self.projects.push(Project {
                owner,
                name,
                work,
                refs,
                signed: 0,
            });
            self.count("repositories");
            let newest = self.projects.len() - 1;
            self.update(servers, newest, to).await;
        }
    }

    async fn push(&mut self, servers: &[Server; 3]) {
        let (project, to) = (self.random_below(self.projects.len()), self.random_below(3));
        self.update(servers, project, to).await;
    }

    /// Commits, sometimes tags or removes a branch, signs, and pushes to one server.
    async fn update(&mut self, servers: &[Server; 3], which: usize, to: usize) {
        let what = self.random_below(10);
        let Some(project) = self.projects.get_mut(which) else {
            return;
        };
        let commit = project.work.commit(&format!("{:?}", Instant::now())).await;
        let mut refs = project.refs.clone();
        refs.insert(MAIN.to_owned(), commit.clone());
        match what {
            0 => _ = refs.insert(format!("refs/tags/v{}", refs.len()), commit),
            1 => _ = refs.insert(format!("refs/heads/b{}", refs.len()), commit),
            2 => refs.retain(|name, _| name == MAIN || !name.starts_with("refs/heads/")),
            _ => {}
        }
        project.signed = Timestamp::now().as_secs().max(project.signed + 1);
        let at = project.owner.at(project.signed);
        let named: Vec<(&str, &str)> = refs.iter().map(|(n, o)| (n.as_str(), o.as_str())).collect();
        let state = at.state(&project.name, &named);
        if !self.publish(servers, to, &state).await {
            return;
        }
        let project = &mut self.projects[which];
        let url = servers[to].clone_url(&project.owner.repo(&project.name));
        let mut args = vec![
            "push".to_owned(),
            "-q".to_owned(),
            "--force".to_owned(),
            url,
        ];
        args.extend(refs.iter().map(|(name, oid)| format!("{oid}:{name}")));
        args.extend(
            project
                .refs
                .keys()
                .filter(|name| !refs.contains_key(*name))
                .map(|n| format!(":{n}")),
        );
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let pushed = project.work.git(&args).await;
        if pushed.ok {
            project.refs = refs;
        }
        self.count(if pushed.ok { "pushes" } else { "failed pushes" });
    }

    async fn propose(&mut self, servers: &[Server; 3]) {
        let (which, to, author) = (
            self.random_below(self.projects.len()),
            self.random_below(3),
            self.random_author(),
        );
        let project = &self.projects[which];
        let repo = project.owner.repo(&project.name);
        let tip = project.work.commit(&format!("{:?}", Instant::now())).await;
        let request = author.pull_request(&repo, &tip);
        let target = format!("{tip}:refs/nostr/{}", request.id);
        let pushed = project
            .work
            .git(&["push", "-q", &servers[to].clone_url(&repo), &target])
            .await;
        project
            .work
            .git(&["reset", "-q", "--hard", "HEAD~1"])
            .await
            .expect_ok();
        if pushed.ok && self.publish(servers, to, &request).await {
            self.threads.push((author, request));
            self.count("pull requests");
        }
    }

    async fn issue(&mut self, servers: &[Server; 3]) {
        let (which, to, author) = (
            self.random_below(self.projects.len()),
            self.random_below(3),
            self.random_author(),
        );
        let project = &self.projects[which];
        let issue = author.issue(
            &project.owner.repo(&project.name),
            &"It is broken. ".repeat(30),
        );
        if self.publish(servers, to, &issue).await {
            self.threads.push((author, issue));
            self.count("issues");
        }
    }

    /// Publishes a comment on a root or a reaction to one, named by its id alone.
    async fn comment(&mut self, servers: &[Server; 3]) {
        if self.threads.is_empty() {
            return;
        }
        let (which, to, author) = (
            self.random_below(self.threads.len()),
            self.random_below(3),
            self.random_author(),
        );
        let root = self.threads[which].1.id.to_hex();
        let comment = match self.random_below(4) {
            0 => author.sign(7, "+", &[&["e", &root]]),
            _ => author.sign(
                1111,
                &"I think so too. ".repeat(20),
                &[&["E", &root], &["e", &root]],
            ),
        };
        // A server that does not have the root yet refuses the comment.
        if self.publish(servers, to, &comment).await {
            self.count("comments");
        }
    }

    async fn delete(&mut self, servers: &[Server; 3]) {
        if self.threads.len() < 50 {
            return;
        }
        let which = self.random_below(self.threads.len());
        let (author, root) = self.threads.swap_remove(which);
        let to = self.random_below(3);
        let request =
            author
                .at(Timestamp::now().as_secs())
                .sign(5, "", &[&["e", &root.id.to_hex()]]);
        if self.publish(servers, to, &request).await {
            self.count("deletions");
        }
    }

    async fn publish(&mut self, servers: &[Server; 3], to: usize, event: &Event) -> bool {
        if self.relays[to].is_none() {
            self.relays[to] = Relay::connect(&servers[to].address).await;
        }
        let answer = match &mut self.relays[to] {
            Some(relay) => relay.publish(event).await,
            None => None,
        };
        match answer {
            Some((accepted, _)) => accepted,
            None => {
                self.relays[to] = None;
                self.count("lost connections");
                false
            }
        }
    }

    /// Waits until all servers serve the same; returns the differences on timeout.
    pub(crate) async fn until_converged(
        &self,
        servers: &[Server; 3],
        timeout: Duration,
    ) -> Result<Duration, String> {
        let began = Instant::now();
        let client =
            |server: &Server| ServerClient::at(server.address.parse().expect("an address"));
        let converged = Convergence::of(&servers.each_ref().map(client))
            .ignoring_old_deletions()
            .ignoring_orphaned_replies();
        converged.within(timeout).await.map(|_| began.elapsed())
    }

    fn random_author(&mut self) -> Author {
        let which = self.random_below(self.authors.len());
        self.authors[which].at(Timestamp::now().as_secs())
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn random_below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % bound as u64) as usize
    }
}
