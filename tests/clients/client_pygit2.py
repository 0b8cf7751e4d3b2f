"""libgit2, by pygit2; events by pynostr."""

import pygit2

from events_pynostr import Events
from flow import Flow

AUTHOR = pygit2.Signature("alice", "alice@example.com")


class Refusals(pygit2.RemoteCallbacks):
    def push_update_reference(self, refname, message):
        if message is not None:
            raise AssertionError(f"{refname}: {message}")


class Client:
    def create(self, path):
        pygit2.init_repository(path, initial_head="main")

    def commit(self, path, branch, files):
        repo = pygit2.Repository(path)
        parents = [] if repo.head_is_unborn else [repo.head.target]
        tree = repo.TreeBuilder(repo[parents[0]].tree) if parents else repo.TreeBuilder()
        for name, data in files.items():
            tree.insert(name, repo.create_blob(data), pygit2.enums.FileMode.BLOB)
        return str(repo.create_commit(f"refs/heads/{branch}", AUTHOR, AUTHOR, "a commit", tree.write(), parents))

    def push(self, path, url, *refspecs):
        pygit2.Repository(path).remotes.create_anonymous(url).push(refspecs, callbacks=Refusals())

    def clone(self, url, path, depth=None):
        repo = pygit2.clone_repository(url, path, depth=depth or 0)
        return str(repo.head.target)

    def fetch(self, path, url, ref):
        repo = pygit2.Repository(path)
        repo.remotes.create_anonymous(url).fetch([f"+{ref}:refs/fetched"])
        return str(repo.references["refs/fetched"].target)


Flow(f"pygit2 {pygit2.__version__}, libgit2 {pygit2.LIBGIT2_VERSION}", Client(), Events).exit()
