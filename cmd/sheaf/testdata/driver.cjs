// Drives the client of examples/node; clients_test.go and clients_answers_test.go say how.
'use strict'
const assert = require('node:assert')
const { setTimeout: sleep } = require('node:timers/promises')
const { Store, Failure } = require('./sheaf_client.cjs')

const store = new Store(process.argv[2])

/** Writes until standard input says "stop", a round a line, then reads everything back, by id, by scan and by what a watch told. */
async function live() {
  const known = new Map(), watched = new Map()
  let id = 0, stop = false, first
  const begun = new Promise((resolve) => { first = resolve })
  ;(async () => {
    for await (const { records } of store.watch('0')) {
      first()
      for (const { key, data } of records) watched.set(Number(key.id), data.toString())
    }
  })()
  await begun
  process.stdin.once('data', () => { stop = true })
  while (!stop) {
    const batch = new Map(Array.from({ length: 50 }, (_, n) => [id + n, Buffer.from(`batch ${id + n}`.repeat(20))]))
    const failed = await store.putMany(batch)
    assert.deepEqual([...failed], [])
    for (const [id, data] of batch) known.set(id, data.toString())
    id += 50
    const version = await store.put({ id }, Buffer.from('one'), { condition: { if_absent: true } })
    assert.equal((await store.get({ id })).toString(), 'one')
    known.set(id, 'one')
    if (id % 3 === 0) { // and again, as another version
      await store.put({ id }, Buffer.from('two'), { condition: { if_version: version } })
      known.set(id, 'two')
    }
    id++
    console.log('round', id)
  }
  const { found, failed } = await store.getMany(known.keys())
  assert.deepEqual([...failed], [])
  for (const [id, data] of known) assert.equal(found.get(id)?.toString(), data)
  const scan = async (group) => {
    const all = new Map()
    for await (const { key, data } of store.scan(group)) all.set(Number(key.id), data.toString())
    return all
  }
  assert.deepEqual(await scan(), known)
  const group = await scan('0'), end = Date.now() + 60_000
  const same = () => group.size === watched.size && [...group].every(([id, data]) => watched.get(id) === data)
  while (!same()) {
    assert(Date.now() < end, `watched ${watched.size} records of ${group.size}`)
    await sleep(10)
  }
  console.log('all', known.size, 'watched', watched.size)
}

/** Makes the calls that a script answers, and prints what came of them. */
async function answers() {
  const told = (what, id, failure) => console.log(`${what} ${id}: ${failure.reason}${failure.maybeDone ? ', maybe done' : ''}`)
  const hello = Buffer.from('hello')
  for (const id of [1, 2, 3, 4, 5, 8, 9]) {
    try {
      await store.put({ id }, hello)
      console.log(`put ${id}: stored`)
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure
      told('put', id, failure)
    }
  }
  for (const id of [6, 7]) {
    try {
      console.log(`get ${id}: ${await store.get({ id })}`)
    } catch (err) {
      if (!(err instanceof RangeError)) throw err
      console.log(`get ${id}: harmed`)
    }
  }
  for (const ids of [[10, 11, 12], [13]]) {
    for (const [id, failure] of await store.putMany(new Map(ids.map((id) => [id, hello])))) told('batch', id, failure)
  }
  watch: for await (const { records } of store.watch('g')) {
    for (const { key } of records) {
      console.log('watched', key.id)
      if (key.id === '21') break watch
    }
  }
  for await (const { key } of store.scan('g')) console.log('scanned', key.id)
}

;(process.argv[3] ? answers() : live()).then(() => process.exit(0), (err) => {
  console.error(err)
  process.exit(1)
})
