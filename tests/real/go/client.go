// An unmodified RocketMQ client for Go behind a pipe: client NAMESRV TOPIC GROUP INTERVAL_MS, or what commands.go has.
//
// NAMESRV is host:port;host:port. It sends one message after the other, never the same twice, and consumes the topic
// with GROUP, until stdin ends. Each line on stdout is an event: {"event":"sent","key":...,"hash":...},
// {"event":"trouble","key":...,"error":...} for a send that failed, {"event":"got","key":...,"hash":...}.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type event struct {
	Event  string `json:"event"`
	Key    string `json:"key,omitempty"`
	Hash   string `json:"hash,omitempty"`
	Broker string `json:"broker,omitempty"`
	Error  string `json:"error,omitempty"`

	ID      int    `json:"id,omitempty"`
	MsgID   string `json:"msgId,omitempty"`
	Member  string `json:"member,omitempty"`
	Topic   string `json:"topic,omitempty"`
	Tag     string `json:"tag,omitempty"`
	Body    string `json:"body,omitempty"`
	Status  string `json:"status,omitempty"`
	Number  string `json:"number,omitempty"`
	Queue   int    `json:"queue"`
	Attempt int    `json:"attempt"`
	Lag     int64  `json:"lag,omitempty"`
}

var out sync.Mutex

func emit(e event) {
	line, _ := json.Marshal(e)
	out.Lock()
	defer out.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func hash(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:16])
}

func main() {
	rlog.SetLogLevel("warn")
	if len(os.Args) < 5 {
		serve(os.Args[1:])
		return
	}
	namesrvs := primitive.NewPassthroughResolver(strings.Split(os.Args[1], ";"))
	topic, group := os.Args[2], os.Args[3]
	interval, err := strconv.Atoi(os.Args[4])
	must(err)

	reader, err := rocketmq.NewPushConsumer(
		consumer.WithGroupName(group),
		consumer.WithNsResolver(namesrvs),
		consumer.WithInstance(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	must(err)
	receive := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			emit(event{Event: "got", Key: m.GetKeys(), Hash: hash(m.Body)})
		}
		return consumer.ConsumeSuccess, nil
	}
	must(reader.Subscribe(topic, consumer.MessageSelector{}, receive))
	must(reader.Start())

	// What fails is told, not tried again: WithRetry(0).
	writer, err := rocketmq.NewProducer(
		producer.WithGroupName(group+"-producer"),
		producer.WithInstanceName(group+"-producer"),
		producer.WithNsResolver(namesrvs),
		producer.WithRetry(0),
		producer.WithSendMsgTimeout(10*time.Second),
	)
	must(err)
	must(writer.Start())

	ended := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	tick := time.NewTicker(time.Duration(interval) * time.Millisecond)
	for number := 0; ; number++ {
		select {
		case <-ended:
			writer.Shutdown()
			reader.Shutdown()
			return
		case <-tick.C:
		}
		key := fmt.Sprintf("%s-%d", group, number)
		body := []byte(strings.Repeat(key+" \u6d88\u606f ", 1+number%20))
		message := primitive.NewMessage(topic, body).WithKeys([]string{key})
		result, err := writer.SendSync(context.Background(), message)
		switch {
		case err != nil:
			emit(event{Event: "trouble", Key: key, Error: err.Error()})
		case result.Status != primitive.SendOK && result.Status != primitive.SendSlaveNotAvailable:
			emit(event{Event: "trouble", Key: key, Error: result.String()})
		default:
			emit(event{Event: "sent", Key: key, Hash: hash(body), Broker: result.MessageQueue.BrokerName})
		}
	}
}
