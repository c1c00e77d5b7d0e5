// The parts of the client that a test asks for one by one: client NAMESRV [ACCESS_KEY SECRET_KEY].
//
// Each line on stdin is a JSON object {"id": n, "do": command, ...}; commands run side by side. A command ends with
// {"event": "done", "id": n} or {"event": "failed", "id": n, "error": text}. The program ends when stdin does.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

type command struct {
	ID         int
	Do         string
	Topic      string
	Group      string
	Member     string
	Prefix     string
	Count      int
	Tags       []string
	Expression string
	Properties map[string]string
	Delay      int
	Batch      bool
	Trace      bool
	Sql        bool
	Order      bool
	Broadcast  bool
	Reply      bool
	// how often a message is refused, and how often it may be
	Refuse       int
	MaxReconsume int
	// of messages without an offset: where to begin, in the text form of consumeTimestamp; empty: at the first
	From string
}

type session struct {
	namesrvs    []string
	credentials primitive.Credentials
	lock        sync.Mutex
	writers     map[string]rocketmq.Producer
	dealers     map[string]rocketmq.TransactionProducer
	readers     map[string]rocketmq.PushConsumer
}

func serve(arguments []string) {
	s := &session{
		namesrvs: strings.Split(arguments[0], ";"),
		writers:  map[string]rocketmq.Producer{},
		dealers:  map[string]rocketmq.TransactionProducer{},
		readers:  map[string]rocketmq.PushConsumer{},
	}
	if len(arguments) == 3 {
		s.credentials = primitive.Credentials{AccessKey: arguments[1], SecretKey: arguments[2]}
	}
	lines := bufio.NewScanner(os.Stdin)
	var running sync.WaitGroup
	for lines.Scan() {
		var c command
		must(json.Unmarshal(lines.Bytes(), &c))
		running.Add(1)
		go func() {
			defer running.Done()
			if err := s.run(c); err != nil {
				emit(event{Event: "failed", ID: c.ID, Error: err.Error()})
			} else {
				emit(event{Event: "done", ID: c.ID})
			}
		}()
	}
	running.Wait()
	for _, one := range s.readers {
		one.Shutdown()
	}
	for _, one := range s.dealers {
		one.Shutdown()
	}
	for _, one := range s.writers {
		one.Shutdown()
	}
}

func (s *session) run(c command) error {
	switch c.Do {
	case "send":
		return s.send(c)
	case "transact":
		return s.transact(c)
	case "consume":
		return s.consume(c)
	case "leave":
		s.lock.Lock()
		reader := s.readers[c.Member]
		delete(s.readers, c.Member)
		s.lock.Unlock()
		return reader.Shutdown()
	case "request":
		return s.request(c)
	}
	return errors.New("unknown command " + c.Do)
}

func (s *session) resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver(s.namesrvs)
}

func (s *session) trace() *primitive.TraceConfig {
	return &primitive.TraceConfig{
		Access: primitive.Local, Resolver: s.resolver(), GroupName: "go-traces", Credentials: s.credentials,
	}
}

// message number i: its key, tag and body follow from the command and i alone.
func (c command) message(i int) *primitive.Message {
	key := fmt.Sprintf("%s-%d", c.Prefix, i)
	m := primitive.NewMessage(c.Topic, []byte("body of "+key)).WithKeys([]string{key})
	if len(c.Tags) > 0 {
		m.WithTag(c.Tags[i%len(c.Tags)])
	}
	for name, value := range c.Properties {
		m.WithProperty(name, value)
	}
	m.WithProperty("number", strconv.Itoa(i))
	if c.Delay > 0 {
		m.WithDelayTimeLevel(c.Delay)
	}
	if c.Order {
		m.WithShardingKey(c.Prefix)
	}
	return m
}

// ---- sending ----

func (s *session) writer(c command) (rocketmq.Producer, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	name := fmt.Sprintf("go-writer-%t-%t", c.Trace, c.Order)
	if one, known := s.writers[name]; known {
		return one, nil
	}
	options := []producer.Option{
		producer.WithGroupName(name),
		producer.WithInstanceName(fmt.Sprintf("%s-%d", name, os.Getpid())),
		producer.WithNsResolver(s.resolver()),
		producer.WithCredentials(s.credentials),
		producer.WithRetry(0),
		producer.WithSendMsgTimeout(10 * time.Second),
	}
	if c.Trace {
		options = append(options, producer.WithTrace(s.trace()))
	}
	if c.Order {
		options = append(options, producer.WithQueueSelector(producer.NewHashQueueSelector()))
	}
	one, err := rocketmq.NewProducer(options...)
	if err == nil {
		err = one.Start()
	}
	if err == nil {
		s.writers[name] = one
	}
	return one, err
}

func (s *session) send(c command) error {
	writer, err := s.writer(c)
	if err != nil {
		return err
	}
	var batch []*primitive.Message
	for i := 0; i < c.Count; i++ {
		message := c.message(i)
		if c.Batch {
			batch = append(batch, message)
			continue
		}
		result, err := writer.SendSync(context.Background(), message)
		if err != nil {
			return err
		}
		emit(event{
			Event: "sent", Key: message.GetKeys(), Status: statusText(result.Status),
			Queue: result.MessageQueue.QueueId, MsgID: result.MsgID,
		})
	}
	if c.Batch {
		_, err = writer.SendSync(context.Background(), batch...)
	}
	return err
}

func statusText(status primitive.SendStatus) string {
	return [...]string{"SEND_OK", "FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"}[status]
}

func (s *session) request(c command) error {
	writer, err := s.writer(c)
	if err != nil {
		return err
	}
	for i := 0; i < c.Count; i++ {
		message := c.message(i)
		reply, err := writer.Request(context.Background(), 30*time.Second, message)
		if err != nil {
			return err
		}
		emit(event{Event: "reply", Key: message.GetKeys(), Body: string(reply.Body)})
	}
	return nil
}

// ---- transactions ----

// listener answers by properties of the message: "local" when it was sent, "checked" when a broker asks.
type listener struct{}

var states = map[string]primitive.LocalTransactionState{
	"COMMIT_MESSAGE":   primitive.CommitMessageState,
	"ROLLBACK_MESSAGE": primitive.RollbackMessageState,
	"UNKNOW":           primitive.UnknowState,
}

func (listener) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	return states[m.GetProperty("local")]
}

func (listener) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	emit(event{Event: "checked", Key: m.GetKeys(), MsgID: m.TransactionId})
	return states[m.GetProperty("checked")]
}

func (s *session) dealer(c command) (rocketmq.TransactionProducer, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if one, known := s.dealers[c.Group]; known {
		return one, nil
	}
	one, err := rocketmq.NewTransactionProducer(
		listener{},
		producer.WithGroupName(c.Group),
		producer.WithInstanceName(fmt.Sprintf("%s-%d", c.Group, os.Getpid())),
		producer.WithNsResolver(s.resolver()),
		producer.WithCredentials(s.credentials),
	)
	if err == nil {
		err = one.Start()
	}
	if err == nil {
		s.dealers[c.Group] = one
	}
	return one, err
}

func (s *session) transact(c command) error {
	dealer, err := s.dealer(c)
	if err != nil {
		return err
	}
	for i := 0; i < c.Count; i++ {
		message := c.message(i)
		result, err := dealer.SendMessageInTransaction(context.Background(), message)
		if err != nil {
			return err
		}
		emit(event{
			Event: "transaction", Key: message.GetKeys(), Status: statusText(result.Status), MsgID: result.MsgID,
		})
	}
	return nil
}

// ---- consuming ----

func (s *session) consume(c command) error {
	options := []consumer.Option{
		consumer.WithGroupName(c.Group),
		consumer.WithInstance(fmt.Sprintf("%s-%d", c.Member, os.Getpid())),
		consumer.WithNsResolver(s.resolver()),
		consumer.WithCredentials(s.credentials),
		consumer.WithConsumerOrder(c.Order),
		consumer.WithSuspendCurrentQueueTimeMillis(100 * time.Millisecond),
	}
	if c.Broadcast {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if c.MaxReconsume > 0 {
		options = append(options, consumer.WithMaxReconsumeTimes(int32(c.MaxReconsume)))
	}
	if c.From == "" {
		options = append(options, consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	} else {
		options = append(options, consumer.WithConsumeFromWhere(consumer.ConsumeFromTimestamp))
		options = append(options, consumer.WithConsumeTimestamp(c.From))
	}
	if c.Trace {
		options = append(options, consumer.WithTrace(s.trace()))
	}
	reader, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: c.Expression}
	if c.Sql {
		selector.Type = consumer.SQL92
	}
	seen := map[string]int{}
	var lock sync.Mutex
	receive := func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		refused := false
		for _, m := range messages {
			lock.Lock()
			seen[m.GetKeys()]++
			refused = refused || seen[m.GetKeys()] <= c.Refuse
			lock.Unlock()
			emit(event{
				Event: "got", Key: m.GetKeys(), Member: c.Member, Tag: m.GetTags(), Topic: m.Topic,
				Queue: m.Queue.QueueId, Body: string(m.Body), Attempt: int(m.ReconsumeTimes),
				Number: m.GetProperty("number"), MsgID: m.MsgId, Lag: time.Now().UnixMilli() - m.BornTimestamp,
			})
			if c.Reply {
				if err := s.reply(c, m); err != nil {
					emit(event{Event: "trouble", Key: m.GetKeys(), Error: err.Error()})
				}
			}
		}
		switch {
		case refused && c.Order:
			return consumer.SuspendCurrentQueueAMoment, nil
		case refused:
			if concurrently, ok := primitive.GetConcurrentlyCtx(ctx); ok {
				concurrently.DelayLevelWhenNextConsume = 1
			}
			return consumer.ConsumeRetryLater, nil
		}
		return consumer.ConsumeSuccess, nil
	}
	if err := reader.Subscribe(c.Topic, selector, receive); err != nil {
		return err
	}
	if err := reader.Start(); err != nil {
		return err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	s.readers[c.Member] = reader
	return nil
}

func (s *session) reply(c command, m *primitive.MessageExt) error {
	writer, err := s.writer(c)
	if err != nil {
		return err
	}
	reply, err := consumer.CreateReplyMessage(m, nil)
	if err != nil {
		return err
	}
	reply.Body = []byte("answer to " + m.GetKeys()) // CreateReplyMessage of 2.1.2 loses it
	_, err = writer.SendSync(context.Background(), reply)
	return err
}
