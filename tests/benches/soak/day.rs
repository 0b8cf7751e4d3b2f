//! What people do in a day.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use grasp_tests::{Author, Convergence, ServerClient, Workdir};
use nostr::event::Event;
use nostr::types::Timestamp;

use crate::relay::Relay;
use crate::server::Server;

const MAIN: &str = "refs/heads/main";
/// Repositories at most; after that, people work on what there is.
const REPOSITORIES: usize = 40;

/// A repository and what its owner has signed.
struct Project {
    owner: Author,
    name: String,
    work: Workdir,
    refs: BTreeMap<String, String>,
    /// When its state was last signed: each must be later than the one before.
    signed: u64,
}

pub(crate) struct Day {
    projects: Vec<Project>,
    people: Vec<Author>,
    threads: Vec<(Author, Event)>,
    relays: [Option<Relay>; 3],
    random: u64,
    counts: BTreeMap<&'static str, usize>,
    /// Servers that go away, and when: a share of the day, which, and whether politely.
    absences: Vec<(f64, usize, bool)>,
}

impl Day {
    pub(crate) async fn begin(servers: &[Server; 3]) -> Self {
        let mut day = Self {
            projects: Vec::new(),
            people: (0..20).map(|_| Author::new()).collect(),
            threads: Vec::new(),
            relays: [None, None, None],
            random: 7,
            counts: BTreeMap::new(),
            absences: vec![(0.2, 1, true), (0.3, 2, false), (0.4, 0, false), (0.5, 0, true)],
        };
        for _ in 0..5 {
            day.announce(servers).await;
        }
        day
    }

    /// Somebody does something, somewhere.
    pub(crate) async fn step(&mut self, servers: &mut [Server; 3], share: f64) {
        if self.absences.first().is_some_and(|(when, ..)| share >= *when) {
            let (_, which, politely) = self.absences.remove(0);
            self.relays[which] = None;
            servers[which].again(politely);
            self.count(if politely { "restarts" } else { "kills" });
        }
        match self.dice(100) {
            0..=1 if self.projects.len() < REPOSITORIES => self.announce(servers).await,
            0..=9 => self.push(servers).await,
            10..=13 => self.propose(servers).await,
            14..=33 => self.issue(servers).await,
            34..=95 => self.comment(servers).await,
            _ => self.delete(servers).await,
        }
    }

    pub(crate) fn told(&self) -> String {
        let counts = self.counts.iter().map(|(what, count)| format!("{count} {what}"));
        counts.collect::<Vec<_>>().join(", ")
    }

    async fn announce(&mut self, servers: &[Server; 3]) {
        let owner = Author::new();
        let name = format!("project-{}", self.projects.len());
        let services = servers.each_ref().map(Server::service);
        let announcement = owner.announce_on(&name, &services);
        let to = self.dice(3);
        if self.publish(servers, to, &announcement).await {
            let work = Workdir::init().await;
            let refs = BTreeMap::new();
            self.projects.push(Project { owner, name, work, refs, signed: 0 });
            self.count("repositories");
            let newest = self.projects.len() - 1;
            self.update(servers, newest, to).await;
        }
    }

    async fn push(&mut self, servers: &[Server; 3]) {
        let (project, to) = (self.dice(self.projects.len()), self.dice(3));
        self.update(servers, project, to).await;
    }

    /// Commits, sometimes tags or removes a branch, signs, and pushes to one server.
    async fn update(&mut self, servers: &[Server; 3], which: usize, to: usize) {
        let what = self.dice(10);
        let Some(project) = self.projects.get_mut(which) else { return };
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
        let mut args = vec!["push".to_owned(), "-q".to_owned(), "--force".to_owned(), url];
        args.extend(refs.iter().map(|(name, oid)| format!("{oid}:{name}")));
        args.extend(
            project.refs.keys().filter(|name| !refs.contains_key(*name)).map(|n| format!(":{n}")),
        );
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let pushed = project.work.git(&args).await;
        if pushed.ok {
            project.refs = refs;
        }
        self.count(if pushed.ok { "pushes" } else { "pushes in vain" });
    }

    async fn propose(&mut self, servers: &[Server; 3]) {
        let (which, to, who) = (self.dice(self.projects.len()), self.dice(3), self.somebody());
        let project = &self.projects[which];
        let repo = project.owner.repo(&project.name);
        let tip = project.work.commit(&format!("{:?}", Instant::now())).await;
        let request = who.pull_request(&repo, &tip);
        let target = format!("{tip}:refs/nostr/{}", request.id);
        let pushed =
            project.work.git(&["push", "-q", &servers[to].clone_url(&repo), &target]).await;
        project.work.git(&["reset", "-q", "--hard", "HEAD~1"]).await.expect_ok();
        if pushed.ok && self.publish(servers, to, &request).await {
            self.threads.push((who, request));
            self.count("pull requests");
        }
    }

    async fn issue(&mut self, servers: &[Server; 3]) {
        let (which, to, who) = (self.dice(self.projects.len()), self.dice(3), self.somebody());
        let project = &self.projects[which];
        let issue = who.issue(&project.owner.repo(&project.name), &"It is broken. ".repeat(30));
        if self.publish(servers, to, &issue).await {
            self.threads.push((who, issue));
            self.count("issues");
        }
    }

    /// A comment on a root or a reaction to one, named by its id alone.
    async fn comment(&mut self, servers: &[Server; 3]) {
        if self.threads.is_empty() {
            return;
        }
        let (which, to, who) = (self.dice(self.threads.len()), self.dice(3), self.somebody());
        let root = self.threads[which].1.id.to_hex();
        let said = match self.dice(4) {
            0 => who.sign(7, "+", &[&["e", &root]]),
            _ => who.sign(1111, &"I think so too. ".repeat(20), &[&["E", &root], &["e", &root]]),
        };
        // Where the thread has not arrived yet nobody can answer it.
        if self.publish(servers, to, &said).await {
            self.count("comments");
        }
    }

    async fn delete(&mut self, servers: &[Server; 3]) {
        if self.threads.len() < 50 {
            return;
        }
        let which = self.dice(self.threads.len());
        let (who, root) = self.threads.swap_remove(which);
        let to = self.dice(3);
        let request = who.at(Timestamp::now().as_secs()).sign(5, "", &[&["e", &root.id.to_hex()]]);
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

    /// Waits until all serve the same; otherwise says how they differ.
    pub(crate) async fn until_equal(
        &self,
        servers: &[Server; 3],
        patience: Duration,
    ) -> Result<Duration, String> {
        let began = Instant::now();
        let client =
            |server: &Server| ServerClient::at(server.address.parse().expect("an address"));
        let equal = Convergence::of(&servers.each_ref().map(client)).ignoring_old_deletions();
        equal.within(patience).await.map(|_| began.elapsed())
    }

    fn somebody(&mut self) -> Author {
        let which = self.dice(self.people.len());
        self.people[which].at(Timestamp::now().as_secs())
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn dice(&mut self, sides: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % sides as u64) as usize
    }
}
