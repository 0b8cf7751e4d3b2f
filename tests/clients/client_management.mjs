// @welshman/util, which calls the management methods of relays (NIP-86) with NIP-98; events by nostr-tools.

import { finalizeEvent, generateSecretKey, getPublicKey } from 'nostr-tools/pure'
import { Relay, useWebSocketImplementation } from 'nostr-tools/relay'
import { ManagementMethod, makeHttpAuth, sendManagementRequest } from '@welshman/util'
import WebSocket from 'ws'

useWebSocketImplementation(WebSocket)
const address = process.env.CLIENTS_ADDRESS
const url = `http://${address}`
const operator = Uint8Array.from(Buffer.from(process.env.CLIENTS_OPERATOR_KEY, 'hex'))
const relay = await Relay.connect(`ws://${address}`)
const stranger = generateSecretKey()
const strangerHex = getPublicKey(stranger)
// A kind that is accepted from everyone.
const GRASP_LIST = 10317
let seconds = Math.floor(Date.now() / 1000)

let failed = false
async function run(operation, work) {
  try {
    await work()
    console.log(`@welshman/util: ${operation}: ok`)
  } catch (error) {
    failed = true
    console.log(`@welshman/util: ${operation}: FAILED: ${error.message}`)
  }
}

function check(condition, found) {
  if (!condition) throw new Error(`found ${JSON.stringify(found)}`)
}

async function authorize(key, request) {
  return finalizeEvent(await makeHttpAuth(url, 'POST', JSON.stringify(request)), key)
}

// Calls a method, and returns its result; throws with the error of the server.
async function call(method, params = [], key = operator) {
  const request = { method, params }
  const { result, error } = await sendManagementRequest(url, request, await authorize(key, request))
  if (error) throw new Error(error)
  return result
}

async function refusal(work) {
  try {
    return [true, await work()]
  } catch (error) {
    return [false, error.message]
  }
}

function publish() {
  const event = { kind: GRASP_LIST, tags: [], content: '', created_at: ++seconds - 600 }
  return relay.publish(finalizeEvent(event, stranger))
}

async function name() {
  const answer = await fetch(url, { headers: { Accept: 'application/nostr+json' } })
  return (await answer.json()).name
}

await run('methods', async () => {
  const methods = await call(ManagementMethod.SupportedMethods)
  // There is no queue of reports.
  const missing = Object.values(ManagementMethod).filter(method => !methods.includes(method))
  check(missing.join() === 'listeventsneedingmoderation', missing)
})

await run('ban and unban an author', async () => {
  await publish()
  check(await call(ManagementMethod.BanPubkey, [strangerHex, 'spam']), 'no result')
  const [, refused] = await refusal(publish)
  check(/blocked/.test(refused), refused)
  const banned = await call(ManagementMethod.ListBannedPubkeys)
  check(banned.some(({ pubkey, reason }) => pubkey === strangerHex && reason === 'spam'), banned)
  await call(ManagementMethod.UnbanPubkey, [strangerHex])
  const after = await call(ManagementMethod.ListBannedPubkeys)
  check(!after.some(({ pubkey }) => pubkey === strangerHex), after)
  await publish()
})

await run('allow list', async () => {
  await call(ManagementMethod.AllowPubkey, [strangerHex, 'a friend'])
  const allowed = await call(ManagementMethod.ListAllowedPubkeys)
  check(allowed.some(({ pubkey }) => pubkey === strangerHex), allowed)
  await call(ManagementMethod.UnallowPubkey, [strangerHex])
})

await run('events', async () => {
  const id = '5'.repeat(64)
  await call(ManagementMethod.BanEvent, [id, 'spam'])
  const banned = await call(ManagementMethod.ListBannedEvents)
  check(banned.some(event => event.id === id), banned)
  await call(ManagementMethod.AllowEvent, [id, ''])
})

await run('name', async () => {
  const before = await name()
  await call(ManagementMethod.ChangeRelayName, ['another name'])
  check((await name()) === 'another name', await name())
  await call(ManagementMethod.ChangeRelayName, [before])
  await call(ManagementMethod.ChangeRelayDescription, ['a description'])
})

await run('kinds and networks', async () => {
  await call(ManagementMethod.DisallowKind, [7])
  check(!(await call(ManagementMethod.ListAllowedKinds)).includes(7), 'kind 7')
  await call(ManagementMethod.AllowKind, [7])
  await call(ManagementMethod.BlockIp, ['192.0.2.7', 'flood'])
  const blocked = await call(ManagementMethod.ListBlockedIps)
  check(blocked.some(({ ip }) => ip.startsWith('192.0.2.7')), blocked)
  await call(ManagementMethod.UnblockIp, ['192.0.2.7'])
})

await run('refusals', async () => {
  const request = { method: ManagementMethod.BanPubkey, params: [strangerHex, ''] }
  const [isDone, error] = await refusal(() => call(request.method, request.params, stranger))
  check(!isDone, 'a stranger may ban')
  check(typeof error === 'string' && error !== '', error)
  const own = await refusal(() => call(request.method, [getPublicKey(operator), '']))
  check(!own[0], 'the operator is banned')
  const name = { method: ManagementMethod.ChangeRelayDescription, params: ['once'] }
  const authorization = await authorize(operator, name)
  check(!(await sendManagementRequest(url, name, authorization)).error, 'the first use is refused')
  check((await sendManagementRequest(url, name, authorization)).error, 'an authorization is used twice')
})

relay.close()
process.exit(failed ? 1 : 0)
