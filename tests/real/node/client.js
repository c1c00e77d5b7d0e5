// An unmodified RocketMQ client for Node.js (ali-ons) behind a pipe: client.js NAMESRV [ACCESS_KEY SECRET_KEY].
//
// Each line on stdin is a JSON object {"id": n, "do": command, ...}. A command ends with {"event": "done", "id": n} or
// {"event": "failed", "id": n, "error": text}. The program ends when stdin does.
'use strict';

const readline = require('node:readline');
const { Consumer, Message, Producer } = require('ali-ons');

const [ nameSrv, accessKeyId, accessKeySecret ] = process.argv.slice(2);
const quiet = () => {};
const logger = { debug: quiet, info: quiet, warn: console.error, error: console.error };
// httpclient would ask for addresses of NameServers; there must be one
const httpclient = { request: quiet };
const common = { nameSrv: nameSrv.split(';'), httpclient, logger, accessKeyId, accessKeySecret, rebalanceInterval: 1000 };
const consumers = new Map();
let producer;

const emit = event => process.stdout.write(JSON.stringify(event) + '\n');

async function send(command) {
  if (!producer) {
    producer = new Producer({ ...common, producerGroup: 'node-writer', instanceName: `writer-${process.pid}` });
    producer.on('error', trouble => console.error(trouble));
    await producer.ready();
  }
  for (let i = 0; i < command.count; i++) {
    const key = `${command.prefix}-${i}`;
    const tag = command.tags ? command.tags[i % command.tags.length] : null;
    const message = new Message(command.topic, tag, `body of ${key}`);
    message.keys = [ key ];
    message.properties.number = String(i);
    Object.assign(message.properties, command.properties);
    if (command.delay) message.delayTimeLevel = command.delay;
    const result = await producer.send(message, command.order ? command.prefix : undefined);
    emit({ event: 'sent', key, status: result.sendStatus, msgId: result.msgId, queue: result.messageQueue.queueId });
  }
}

async function consume(command) {
  const consumer = new Consumer({
    ...common,
    consumerGroup: command.group,
    instanceName: `${command.member}-${process.pid}`,
    isBroadcast: Boolean(command.broadcast),
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    persistConsumerOffsetInterval: 1000,
  });
  consumer.on('error', trouble => console.error(trouble));
  const filter = command.sql ? { expressionType: 'SQL92', subString: command.expression } : command.expression || '*';
  const seen = new Map();
  consumer.subscribe(command.topic, filter, async message => {
    const times = (seen.get(message.keys) || 0) + 1;
    seen.set(message.keys, times);
    emit({
      event: 'got', key: message.keys, member: command.member, tag: message.tags, topic: message.topic,
      queue: message.queueId, body: message.body.toString(), attempt: message.reconsumeTimes,
      number: message.properties.number, lag: Date.now() - Number(message.bornTimestamp),
    });
    return times <= (command.refuse || 0) ? Consumer.ACTION_RETRY : undefined;
  });
  await consumer.ready();
  consumers.set(command.member, consumer);
}

async function leave(command) {
  const consumer = consumers.get(command.member);
  consumers.delete(command.member);
  await consumer.close();
}

const commands = { send, consume, leave };

const lines = readline.createInterface({ input: process.stdin });
lines.on('line', async line => {
  const command = JSON.parse(line);
  try {
    await commands[command.do](command);
    emit({ event: 'done', id: command.id });
  } catch (trouble) {
    emit({ event: 'failed', id: command.id, error: String(trouble) });
  }
});
lines.on('close', async () => {
  for (const consumer of consumers.values()) await consumer.close();
  if (producer) await producer.close();
  process.exit(0);
});
