"""dulwich, git in pure Python; events by pynostr."""

import io

import dulwich
from dulwich import porcelain
from dulwich.client import get_transport_and_path
from dulwich.objects import Blob, Commit, Tree
from dulwich.repo import Repo

from events_pynostr import Events
from flow import Flow


class Client:
    def create(self, path):
        Repo.init(path, mkdir=True, default_branch=b"main")

    def commit(self, path, branch, files):
        with Repo(path) as repo:
            parent = repo[repo.head()] if b"refs/heads/main" in repo else None
            tree = repo[parent.tree] if parent else Tree()
            for name, data in files.items():
                blob = Blob.from_string(data)
                repo.object_store.add_object(blob)
                tree[name.encode()] = (0o100644, blob.id)
            commit = Commit()
            commit.tree, commit.parents = tree.id, [parent.id] if parent else []
            commit.author = commit.committer = b"alice <alice@example.com>"
            commit.author_time = commit.commit_time = 1_700_000_000
            commit.author_timezone = commit.commit_timezone = 0
            commit.message = b"a commit"
            repo.object_store.add_object(tree)
            repo.object_store.add_object(commit)
            repo.refs[b"refs/heads/" + branch.encode()] = commit.id
            return commit.id.decode()

    def push(self, path, url, *refspecs):
        result = porcelain.push(path, url, list(refspecs), outstream=io.BytesIO(), errstream=io.BytesIO())
        refused = {ref: reason for ref, reason in result.ref_status.items() if reason}
        if refused:
            raise AssertionError(str(refused))

    def clone(self, url, path, depth=None):
        with porcelain.clone(url, path, depth=depth, errstream=io.BytesIO()) as repo:
            return repo.head().decode()

    def fetch(self, path, url, ref):
        client, remote_path = get_transport_and_path(url)
        with Repo(path) as repo:
            result = client.fetch(remote_path, repo, determine_wants=lambda refs, depth=None: [refs[ref.encode()]])
            oid = result.refs[ref.encode()]
            return repo[oid].id.decode()


Flow("dulwich " + ".".join(map(str, dulwich.__version__[:3])), Client(), Events).exit()
