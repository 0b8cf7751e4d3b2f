// isomorphic-git, git in JavaScript; events by nostr-tools over a websocket.

import fs from 'node:fs'
import path from 'node:path'
import { randomBytes } from 'node:crypto'
import git from 'isomorphic-git'
import http from 'isomorphic-git/http/node'
import { finalizeEvent, generateSecretKey, getPublicKey } from 'nostr-tools/pure'
import { fetchRelayInformation, useFetchImplementation } from 'nostr-tools/nip11'
import { npubEncode } from 'nostr-tools/nip19'
import { Relay, useWebSocketImplementation } from 'nostr-tools/relay'
import WebSocket from 'ws'

useWebSocketImplementation(WebSocket)
useFetchImplementation(globalThis.fetch)
const MAIN = 'refs/heads/main'
const address = process.env.CLIENTS_ADDRESS
const work = path.join(process.env.CLIENTS_WORK, 'isomorphic-git')
const own = { fs, dir: path.join(work, 'own') }
const copy = { fs, dir: path.join(work, 'copy') }
const author = { name: 'alice', email: 'alice@example.com' }
const relay = await Relay.connect(`ws://${address}`)
const owner = generateSecretKey()
const ownerHex = getPublicKey(owner)
const identifier = `third-party-${ownerHex.slice(0, 8)}`
const url = `http://${address}/${npubEncode(ownerHex)}/${identifier}.git`
const version = git.version()
const now = () => Math.floor(Date.now() / 1000)

let failed = false
async function run(operation, work) {
  try {
    await work()
    console.log(`isomorphic-git ${version}: ${operation}: ok`)
  } catch (error) {
    failed = true
    console.log(`isomorphic-git ${version}: ${operation}: FAILED: ${error.message} ${JSON.stringify(error.data ?? '')}`)
  }
}

function equal(wanted, found) {
  if (wanted !== found) throw new Error(`expected ${wanted}, found ${found}`)
}

// Sends an event, and returns its id and the message of the relay; throws with that message if it is refused.
async function send(key, kind, tags, created_at) {
  const event = finalizeEvent({ kind, tags, created_at, content: '' }, key)
  return [event.id, await relay.publish(event)]
}

function has(id) {
  return new Promise((resolve, reject) => {
    let found = false
    const sub = relay.subscribe([{ ids: [id] }], {
      onevent: () => (found = true),
      oneose: () => (sub.close(), resolve(found)),
      onclose: reason => reason.startsWith('closed by caller') || reject(new Error(`CLOSED: ${reason}`)),
    })
  })
}

const held = message => equal('purgatory', message.split(':')[0])
const refs = {}
let signedAt = now() - 100
let state
async function sign(changed) {
  Object.assign(refs, changed)
  const tags = Object.entries(refs).filter(([, oid]) => oid).map(([name, oid]) => [`refs/heads/${name}`, oid])
  const [id, message] = await send(owner, 30618, [['d', identifier], ['HEAD', `ref: ${MAIN}`], ...tags], ++signedAt)
  state = id
  return message
}

async function commit(at, branch, name, data) {
  if (branch !== 'main') await git.branch({ ...at, ref: branch, object: 'main', checkout: true })
  fs.writeFileSync(path.join(at.dir, name), data)
  await git.add({ ...at, filepath: name })
  const oid = await git.commit({ ...at, message: 'a commit', author })
  if (branch !== 'main') await git.checkout({ ...at, ref: 'main' })
  return oid
}

async function push(at, ref, remoteRef, more = {}) {
  const result = await git.push({ ...at, http, url, ref, remoteRef, ...more })
  const refused = Object.entries(result.refs).filter(([, status]) => !status.ok)
  if (!result.ok || refused.length) throw new Error(JSON.stringify(result))
}

async function fetch(at, ref) {
  const result = await git.fetch({ ...at, http, url, ref, remote: 'origin', singleBranch: true, tags: false })
  await git.readCommit({ ...at, oid: result.fetchHead })
  return result.fetchHead
}

let announcement, first, second, unsigned
await run('announce', async () => {
  const tags = [['d', identifier], ['clone', url], ['relays', `ws://${address}`]]
  const [id, message] = await send(owner, 30617, tags, now() - 200)
  held(message)
  equal(false, await has((announcement = id)))
})
await run('sign', async () => {
  await git.init({ ...own, defaultBranch: 'main' })
  await git.addRemote({ ...own, remote: 'origin', url })
  await commit(own, 'main', 'random', randomBytes(3_000_000))
  first = await commit(own, 'main', 'README.md', '# hello\n')
  held(await sign({ main: first }))
})
await run('refused push', async () => {
  unsigned = await commit(own, 'unsigned', 'README.md', 'not signed\n')
  const refused = await push(own, 'unsigned', 'refs/heads/unsigned').catch(error => error)
  if (!refused) throw new Error('a push without a signed state was accepted')
  if (!refused.message.includes('is not in the signed state')) throw refused
})
await run('push', async () => {
  await push(own, 'main', MAIN)
  equal(true, (await has(announcement)) && (await has(state)))
})
await run('clone', async () => {
  await git.clone({ ...copy, http, url })
  equal(first, await git.resolveRef({ ...copy, ref: 'HEAD' }))
  equal('# hello\n', fs.readFileSync(path.join(copy.dir, 'README.md'), 'utf8'))
})
await run('fetch', async () => {
  second = await commit(own, 'main', 'README.md', '# hello again\n')
  await sign({ main: second })
  await push(own, 'main', MAIN)
  equal(second, await fetch(copy, 'main'))
})
await run('shallow clone', async () => {
  const shallow = { fs, dir: path.join(work, 'shallow') }
  await git.clone({ ...shallow, http, url, depth: 1, singleBranch: true })
  equal(1, (await git.log(shallow)).length)
})
await run('branch', async () => {
  const topic = await commit(own, 'topic', 'topic', 'a branch\n')
  await sign({ topic })
  await push(own, 'topic', 'refs/heads/topic')
  equal(topic, await fetch(copy, 'topic'))
})
// isomorphic-git pushes one ref at a time, and a push has to contain all changes of a state. A state that needs no new
// objects is applied when it is published.
await run('deletion', async () => {
  await sign({ topic: undefined })
  await push(own, 'topic', 'refs/heads/topic', { delete: true })
  equal(true, await has(state))
})
await run('forced push', async () => {
  await sign({ main: unsigned })
  await push(own, 'unsigned', MAIN, { force: true })
  equal(unsigned, await fetch(copy, 'main'))
})
await run('pull request', async () => {
  const tip = await commit(copy, 'proposal', 'CHANGES', 'a proposal\n')
  const tags = [['a', `30617:${ownerHex}:${identifier}`], ['p', ownerHex], ['c', tip], ['clone', url]]
  const [id, message] = await send(generateSecretKey(), 1618, tags, now())
  held(message)
  equal(false, await has(id))
  await push(copy, 'proposal', `refs/nostr/${id}`)
  equal(true, await has(id))
  equal(tip, await fetch(own, `refs/nostr/${id}`))
})
await run('refs by protocol v2', async () => {
  const listed = await git.listServerRefs({ http, url, protocolVersion: 2, prefix: 'refs/heads/' })
  equal(unsigned, listed.find(ref => ref.ref === MAIN)?.oid)
})
await run('nostr-tools: information document', async () => {
  const { supported_nips, supported_grasps } = await fetchRelayInformation(`ws://${address}`)
  equal(true, supported_nips.includes(34) && supported_grasps.includes('GRASP-01'))
})
await run('nostr-tools: refused event', async () => {
  const refused = await send(generateSecretKey(), 1, [], now()).catch(error => error)
  if (!String(refused.message).startsWith('restricted: ')) throw new Error(`answered ${refused}`)
})
await run('nostr-tools: count', async () => equal(2, await relay.count([{ authors: [ownerHex] }], {})))
await run('nostr-tools: live subscription', async () => {
  const other = await Relay.connect(`ws://${address}`)
  const tags = [['a', `30617:${ownerHex}:${identifier}`], ['subject', 'live']]
  let sent
  const received = await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error('no event within 10 seconds')), 10_000).unref()
    other.subscribe([{ kinds: [1621], '#a': [tags[0][1]] }], {
      onevent: event => resolve(event.id),
      oneose: () => (sent = send(owner, 1621, tags, now())).catch(reject),
    })
  })
  equal((await sent)[0], received)
  other.close()
})
relay.close()
process.exit(failed ? 1 : 0)
